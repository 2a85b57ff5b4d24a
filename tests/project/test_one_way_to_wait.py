"""Waiting is done in one way, read from the syntax trees of all modules: with a `Deadline`, or by a membership."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "fedstack"
# What may sleep, and measure time by itself. The package for tests holds no promise to users: it makes what is slow.
ROOMS = ("foundations/", "membership/", "testing/")

SLEEPS = {
    "executors/concurrency/coroutines.py": "the pauses of a RetryPolicy, where a debugging context allows no loop",
}
MOMENTS = {
    "backends/lost_clients.py": "when lost clients may run again; the phase waits for its events meanwhile",
    "backends/elastic/rebalancing.py": "how long workers have been idle; the phase waits for its events meanwhile",
    "service/coordinator/cancelled.py": "how long cancelled calls keep their places; the driver's turns free them",
    "service/data/consumer/data_workers.py": "how old a list is, and how long a worker is avoided",
    "service/data/consumer/pass_driver.py": "when the next sign of life is due; the pass waits for its event meanwhile",
    "service/data/dispatcher/dispatch_service.py": "how late the loop was after a pause",
    "service/data/reading/local_reader.py": "looked at for each small element, which costs as much as making it",
    "service/host/doors/stream_door.py": "timers of the loop: the time limit of a call, and the next try to accept",
    "service/host/status.py": "how late the loop was after a timer",
    "transport/grpc/credential_files.py": "how seldom a file is looked at; nothing waits for it",
    "transport/peers/leases.py": "leases of a server end while nothing waits for them",
    "transport/peers/io_loop.py": "a timer of the loop, which is given the time when it is due",
    "transport/stream/found_connection.py": "when a stream is tried again; calls use gRPC meanwhile",
    "transport/stream/loop_exchange.py": "the limit moves with the data that are received, and if the loop was held up",
    "transport/stream/stream.py": "when a silent peer is asked, or an idle connection closed; nothing waits for it",
    "transport/peers/retry.py": "the policy itself",
    "transport/wire/heartbeat.py": "the limit moves with each sign of life",
}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(ROOMS):
            yield name, ast.parse(path.read_text("utf-8"))


def _called(node: ast.AST) -> str:
    """Returns the name of what is called, without what it is an attribute of."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_sleep(node: ast.AST) -> bool:
    """Whether this waits for nothing but time: `sleep`, or an event that nothing else can set."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "wait":
        return _called(node.func.value) == "Event" and bool(node.args)
    return _called(node) == "sleep"


def _is_moment(node: ast.AST) -> bool:
    """Whether this is a time on a clock that comes after some seconds."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return False
    return any(
        _called(side) in ("monotonic", "perf_counter", "time", "_clock", "clock") for side in (node.left, node.right)
    )


def test_no_loop_sleeps_outside_of_membership_and_foundations() -> None:
    found = {
        name
        for name, module in _modules()
        for loop in ast.walk(module)
        if isinstance(loop, (ast.For, ast.While, ast.AsyncFor))
        if any(map(_is_sleep, ast.walk(loop)))
    }
    assert found == set(), "use Deadline.attempts, or wait for an event"


def test_nothing_sleeps_for_a_loop_of_another_function() -> None:
    found = {name for name, module in _modules() if any(_called(node) == "sleep" for node in ast.walk(module))}
    assert found == SLEEPS.keys(), "use Deadline.attempts, or wait for an event"


def test_there_is_no_second_deadline() -> None:
    """What loses a cancellation, or measures by itself how long something may take."""
    second = {
        name
        for name, module in _modules()
        for node in ast.walk(module)
        if _called(node) in ("wait_for", "timeout", "timeout_at", "move_on_after", "fail_after")
    }
    assert second == set(), "use Deadline"
    moments = {name for name, module in _modules() if any(map(_is_moment, ast.walk(module)))}
    assert moments == MOMENTS.keys(), "use Deadline, or say here what is no deadline about it"
