"""JAX functions on workers, which have none of the user's code, and the same bits."""

import contextlib
import os
import signal
import threading

import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from await_until import await_until
from serving import served

import fedstack
from fedstack.computations.leaves.compilations import compilations
from fedstack.computations.leaves.leaf_runtimes import Destination
from fedstack.computations.leaves.portability import portable
from fedstack.errors import CarrierError, FedstackError
from fedstack.executors.concurrency.progress import ProgressCounts
from fedstack.proto.extensions_pb2 import GetStatusResponse
from fedstack.service import ExecutorService
from fedstack.service.pool.worker_pool import local_worker_pool
from fedstack.testing.in_memory_connection import InMemoryConnection
from fedstack.transport.peers.executor_stub import ExecutorStub
from fedstack.transport.peers.io_loop import io_loop
from fedstack.transport.peers.methods import ServerFacts

pytestmark = pytest.mark.slow

FLOAT = np.float32
ROW, MATRIX = fl.TensorType(FLOAT, [20]), fl.TensorType(FLOAT, [20, 30])


@fedstack.jax_computation(ROW, MATRIX)
def projected(x, matrix):
    return {"row": jnp.tanh(x @ matrix), "norm": jnp.sqrt(x @ x)}


@fedstack.jax_computation(fl.TensorType(FLOAT, [40, 20]), MATRIX)
def trained(rows, matrix):
    """A few steps of gradient descent, which are not vectorized."""
    for _ in range(5):
        matrix = matrix - 0.1 * rows.T @ jnp.tanh(rows @ matrix) / 40
    return matrix


@fl.federated_computation(
    fl.FederatedType(ROW, fl.CLIENTS),
    fl.FederatedType(fl.TensorType(FLOAT, [40, 20]), fl.CLIENTS),
    fl.FederatedType(MATRIX, fl.SERVER),
)
def everything(rows, data, matrix):
    matrices = fl.federated_broadcast(matrix)
    found = fl.federated_map(projected, (rows, matrices))
    models = fl.federated_map(trained, (data, matrices))
    return found, fl.federated_sum(found), fl.federated_mean(models), fl.federated_map(trained, (data, matrices))


def arguments(clients: int):
    random = np.random.default_rng(0)
    rows = list(random.normal(size=(clients, 20)).astype(FLOAT))
    data = list(random.normal(size=(clients, 40, 20)).astype(FLOAT))
    return rows, data, random.normal(size=(20, 30)).astype(FLOAT)


def bits(value) -> object:
    if isinstance(value, dict):
        return {name: bits(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(member) for member in value]
    return np.asarray(value).tobytes()


@pytest.fixture(scope="module")
def expected():
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        return bits(everything(*arguments(150)))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_bits_are_the_same_on_any_number_of_workers(workers, expected) -> None:
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(local_worker_pool(workers))
        context = stack.enter_context(fedstack.create_sync_remote_execution_context(pool))
        stack.enter_context(fedstack.use_context(context))
        assert bits(everything(*arguments(150))) == expected


def test_the_bits_are_the_same_after_a_worker_was_killed(expected) -> None:
    @fedstack.python_computation([ROW])
    def slowly(row):
        __import__("time").sleep(0.01)
        return row

    @fl.federated_computation(everything.type_signature.parameter)
    def after_a_while(argument):
        return everything(fl.federated_map(slowly, argument[0]), argument[1], argument[2])

    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(local_worker_pool(3))
        context = stack.enter_context(fedstack.create_sync_remote_execution_context(pool))
        stack.enter_context(fedstack.use_context(context))
        os.kill(pool.pids[0], signal.SIGKILL)
        assert bits(after_a_while(*arguments(150))) == expected


def test_workers_that_compile_in_another_way_refuse_to_run_clients_unless_the_fleet_is_mixed(tmp_path, caplog) -> None:
    file = tmp_path / "clients"
    path = str(file)

    @fedstack.python_computation([ROW], ROW)
    def noted(row):
        with open(path, "a") as clients:
            clients.write("one more\n")
        return row

    @fl.federated_computation(everything.type_signature.parameter)
    def noting(argument):
        return everything(fl.federated_map(noted, argument[0]), argument[1], argument[2])

    flags = {"XLA_FLAGS": "--xla_cpu_enable_fast_min_max=true --xla_dump_to=/nowhere"}
    with local_worker_pool(1, environment=flags) as pool:
        for options in ({}, {"client_failures": fedstack.ClientFailures()}):
            context = fedstack.create_sync_remote_execution_context(pool, **options)
            with context, fedstack.use_context(context):
                with pytest.raises(CarrierError, match=r"found another; at .*, process \d+; use .* or pass mixed=True"):
                    noting(*arguments(5))
        assert not file.exists()
        with fedstack.create_sync_remote_execution_context(pool, mixed=True) as context, fedstack.use_context(context):
            found = noting(*arguments(150))
    assert len(file.read_text().splitlines()) == 150
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        here = everything(*arguments(150))
    assert np.allclose(found[2], here[2], rtol=1e-4, atol=1e-5)
    (record,) = caplog.records
    assert "has another version of jaxlib, other flags of XLA, another device" in record.message


def test_workers_run_loops_over_sequences() -> None:
    batch = {"x": (FLOAT, [4, 3]), "y": (FLOAT, [4])}

    @fedstack.jax_computation((FLOAT, [3]), fl.SequenceType(batch))
    def fitted(model, batches):
        def step(model, batch):
            return model - 0.1 * batch["x"].T @ (batch["x"] @ model - batch["y"])

        return batches.scan(step, model)

    @fl.federated_computation(
        fl.FederatedType((FLOAT, [3]), fl.SERVER), fl.FederatedType(fl.SequenceType(batch), fl.CLIENTS)
    )
    def all_models(model, clients):
        return fl.federated_map(fitted, (fl.federated_broadcast(model), clients))

    random = np.random.default_rng(0)
    clients = [
        fedstack.batches(
            {"x": random.normal(size=(n, 3)).astype(FLOAT), "y": np.ones(n, FLOAT)}, 4, drop_remainder=True
        )
        for n in range(0, 40, 5)
    ]
    model = np.zeros(3, FLOAT)
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        here = all_models(model, clients)
    assert not np.array_equal(here[1], here[7])
    with local_worker_pool(2) as pool, fedstack.create_sync_remote_execution_context(pool) as context:
        with fedstack.use_context(context):
            assert bits(all_models(model, clients)) == bits(here)


def test_workers_run_modules_of_other_projects() -> None:
    message = portable(projected.to_proto(), Destination(takes_code=False, is_plain=True))
    stack, signature = projected.context_stack, projected.type_signature
    module = type(everything)(computation_proto=message, context_stack=stack, annotated_type=signature)

    @fl.federated_computation(fl.FederatedType(ROW, fl.CLIENTS), fl.FederatedType(MATRIX, fl.SERVER))
    def all_projected(rows, matrix):
        return fl.federated_map(module, (rows, fl.federated_broadcast(matrix)))

    rows, _, matrix = arguments(150)
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        here = bits(all_projected(rows, matrix))
    with local_worker_pool(2) as pool, fedstack.create_sync_remote_execution_context(pool) as context:
        with fedstack.use_context(context):
            assert bits(all_projected(rows, matrix)) == here


def test_a_service_without_extensions_receives_modules() -> None:
    sent: list[bytes] = []

    class Reading(InMemoryConnection):
        async def unary(self, path, request, timeout):
            sent.append(request)
            return await super().unary(path, request, timeout)

    doubled = fedstack.jax_computation(FLOAT)(lambda x: x * 2)

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def total(x):
        return fl.federated_sum(fl.federated_map(doubled, x))

    service = ExecutorService(fedstack.local_executor_factory(), extensions=False)
    stub = ExecutorStub(Reading(service, "plain"), extensions=False)
    try:
        with fedstack.create_sync_remote_execution_context([stub]) as context, fedstack.use_context(context):
            assert total([FLOAT(1), FLOAT(2)]) == 6.0
    finally:
        io_loop.run_sync(service.close())
    content = b"".join(sent)
    assert b"xla.HloModuleProto" in content
    assert b"JaxExport" not in content


def test_a_worker_shows_for_whose_compilation_its_clients_wait() -> None:
    shown: list[str] = []
    seen = threading.Event()

    def wait(event: str, seconds: float, **_: object) -> None:  # stays registered
        if event.endswith("jaxpr_to_mlir_module_duration") and compilations.function == "trained_alone":
            assert seen.wait(30)

    @fedstack.jax_computation(fl.TensorType(FLOAT, [40, 20]))
    def trained_alone(rows):
        return trained(rows, jnp.ones((20, 30), FLOAT))

    @fl.federated_computation(fl.FederatedType(fl.TensorType(FLOAT, [40, 20]), fl.CLIENTS))
    def average(rows):
        return fl.federated_mean(fl.federated_map(trained_alone, rows))

    @contextlib.contextmanager
    def progress(_):
        counts = ProgressCounts()
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(0.05):
                work = counts.work()
                if len(work) == 2 and all(one.function == "trained_alone (compiling)" for one in work):
                    status = GetStatusResponse()
                    io_loop.run_sync(service.report(status))
                    shown.extend(one.function for one in status.work)
                    seen.set()

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield counts
        finally:
            ended.set()
            watcher.join()

    service = ExecutorService(fedstack.local_executor_factory(max_concurrent_clients=2))
    stub = ExecutorStub(InMemoryConnection(service, "here"))
    jax.monitoring.register_event_duration_secs_listener(wait)
    try:
        with fedstack.create_sync_remote_execution_context([stub], progress=progress) as context:
            with fedstack.use_context(context):
                average(np.ones((40, 40, 20), FLOAT))
    finally:
        io_loop.run_sync(service.close())
    assert shown[:2] == ["trained_alone (compiling)"] * 2


def test_an_error_of_a_worker_names_the_function() -> None:
    message = projected.to_proto()
    message.xla.hlo_module.value = message.xla.hlo_module.value[:-10]
    with local_worker_pool(1) as pool, fedstack.create_sync_remote_execution_context(pool) as context:
        with fedstack.use_context(context), pytest.raises(CarrierError, match="fedstack.v1.JaxExport|'projected'"):
            type(everything)(
                computation_proto=message,
                context_stack=everything.context_stack,
                annotated_type=projected.type_signature,
            )(np.zeros(20, FLOAT), np.zeros((20, 30), FLOAT))


@pytest.mark.parametrize(
    ("facts", "accepts"),
    [
        ({"is_local": False}, False),
        ({"is_local": True}, True),
        ({"is_local": False, "asks_for_token": True}, True),
        ({"is_local": False, "asks_for_certificate": True}, True),
    ],
)
def test_a_server_that_strangers_can_call_accepts_no_exports(facts, accepts) -> None:
    service = ExecutorService(fedstack.local_executor_factory())
    service.attach(ServerFacts(**facts))
    assert service._core.policy.jax_exports is accepts
    assert service._core.admission.policy.jax_exports is accepts


def test_a_server_stops_while_a_compiled_function_still_runs() -> None:
    @fedstack.jax_computation(FLOAT)
    def slow(x):
        matrix = jnp.ones((500, 500)) * x
        return jax.lax.fori_loop(0, 100, lambda i, v: jnp.tanh(v @ matrix), matrix).sum()

    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def total(x):
        return fl.federated_sum(fl.federated_map(slow, x))

    counts = ProgressCounts()
    policy = fedstack.RetryPolicy(attempts=1)
    with served("--grace-seconds", 0.1) as server:
        context = fedstack.create_sync_remote_execution_context(
            server.target, progress=lambda _: contextlib.nullcontext(counts), retry_policy=policy
        )

        def call() -> None:
            with context, fedstack.use_context(context), pytest.raises(FedstackError):
                total([1.0] * 1000)

        caller = threading.Thread(target=call)
        caller.start()
        await_until(lambda: any(one.function == "slow" for one in counts.work()))
        server.process.terminate()
        _, errors = server.process.communicate(timeout=60)
        assert (server.process.returncode, "Aborted" in errors) == (0, False), errors
        caller.join()
