"""Whatever a service is sent, it answers with a status that says what is wrong, and stays in good health."""

import asyncio
import gc
import os
import random
from collections.abc import Sequence

import federated_language as fl
import foreign_bytes as fb
import hostile_requests
import numpy as np
import psutil
import pytest
from calling import call
from fuzz_calls import Fuzzer, over_connection
from fuzz_requests import CLIENTS, FUNCTIONS, PHASES, VALUES, Drawer, Request, phase_request
from fuzz_spoiling import Spoiler
from grpc_health.v1 import health_pb2

import fedstack
from fedstack.computations.codec.value_messages import value_to_proto
from fedstack.proto import executor_pb2 as plain
from fedstack.proto import extensions_pb2 as extended
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServiceLimits
from fedstack.service.host.server_thread import ServerThread

# What the fuzzer's own leaf functions compute may overflow, of which NumPy warns; what the service computes may not.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore::RuntimeWarning:fuzz_requests")]

SEED = "FEDSTACK_FUZZ_SEED"
# The same in each run, so that who changes something finds what it breaks; the long siege draws others.
SEEDS = ["215099510", *(str(number) for number in range(1, 10))]
AT_ONCE = 12
MIB = 1 << 20
LIMITS = ServiceLimits(
    max_sessions=500,
    max_values=300,
    max_session_bytes=64 * MIB,
    max_value_bytes=16 * MIB,
    max_clients=5000,
    heartbeat_seconds=0.2,
    lease_seconds=600.0,
)
METHODS = {name for methods in ExecutorService(fedstack.local_executor_factory()).methods.values() for name in methods}


class Talk:
    """One client's conversation: what it sends depends on its generator, and not on other clients."""

    def __init__(self, fuzzer: Fuzzer, seed: str) -> None:
        self._fuzzer = fuzzer
        self._choose = random.Random(seed)
        self._drawer = Drawer(self._choose)
        self._spoiler = Spoiler(self._choose)

    async def go_on(self, requests: int) -> None:
        for _ in range(requests):
            request = self._drawer.request()
            fate = self._choose.random()
            if fate < 0.1:
                request = self._spoiler.garbage(request.method)
            elif fate < 0.5:
                request = self._spoiler.spoilt(request)
            answers = await self._fuzzer.send(request)
            if answers is not None:
                self._learn(request, answers[0] if answers else b"")

    def _learn(self, request: Request, answer: bytes) -> None:
        """Takes note of the ids of what there is now."""
        method, sessions = request.method, self._drawer.sessions
        if method in ("GetExecutor", "OpenSession"):
            response = (plain.GetExecutorResponse if method == "GetExecutor" else extended.OpenSessionResponse)()
            response.MergeFromString(answer)
            sessions[response.executor.id] = {}
        elif method in ("CreateValue", "CreateCall", "CreateStruct", "CreateSelection"):
            asked = getattr(plain, f"{method}Request").FromString(request.frames[0])
            made = getattr(plain, f"{method}Response").FromString(answer)
            sessions.setdefault(asked.executor.id, {})[made.value_ref.id] = request.makes[0] if request.makes else None
        elif method in ("Evaluate", "Start"):
            message = extended.EvaluateRequest if method == "Evaluate" else extended.StartRequest
            asked = message.FromString(extended.Frame.FromString(request.frames[0]).header)
            sessions.setdefault(asked.executor.id, {}).update((creation.id, None) for creation in asked.creation)
        elif method == "DisposeExecutor":
            sessions.pop(plain.DisposeExecutorRequest.FromString(request.frames[0]).executor.id, None)


@fl.federated_computation(fl.FederatedType(np.float32, fl.CLIENTS))
def mean(values):
    return fl.federated_mean(values)


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def check_health(service: ExecutorService, target: str, fuzzer: Fuzzer) -> None:
    """Checks that the service is as it was before it was fuzzed."""
    answer = call(target, "/grpc.health.v1.Health/Check", b"")
    assert health_pb2.HealthCheckResponse.FromString(answer).status == health_pb2.HealthCheckResponse.SERVING

    with fedstack.use_context(fedstack.create_sync_remote_execution_context(target)) as context:
        assert mean([1.0, 2.0, 6.0]) == 3.0
        context.close()

    async def dispose_all(fuzzer: Fuzzer) -> None:
        status = extended.GetStatusResponse.FromString((await fuzzer.send(Request("GetStatus", [b""])))[0])
        assert all(session.values <= LIMITS.max_values for session in status.session)
        assert all(session.bytes <= LIMITS.max_session_bytes for session in status.session)
        for session in sessions:
            request = plain.DisposeExecutorRequest(executor=plain.ExecutorId(id=session))
            await fuzzer.send(Request("DisposeExecutor", [request.SerializeToString()]))

    sessions = fuzzer.sessions
    over_connection(target, dispose_all)
    status = service.status()
    assert (len(status.session), status.values, status.bytes) == (0, 0, 0)


def fuzz(requests: int, seeds: Sequence[str], room: int) -> None:
    """Sends a service requests drawn with each of some seeds, one after the other."""
    service = ExecutorService(fedstack.local_executor_factory(), limits=LIMITS)
    with ServerThread(GrpcServer([service])) as server:

        async def talk(fuzzer: Fuzzer) -> None:
            for seed in seeds:
                found = len(fuzzer.bugs)
                talks = [Talk(fuzzer, f"{seed} {number}") for number in range(AT_ONCE)]
                await asyncio.gather(*(t.go_on(-(-requests // AT_ONCE)) for t in talks))
                fuzzer.bugs[found:] = [f"{SEED}={seed} repeats it: {bug}" for bug in fuzzer.bugs[found:]]

        # What is loaded and cached once is there before the memory is looked at.
        first = over_connection(server.target, lambda fuzzer: Talk(fuzzer, f"{seeds[0]} first").go_on(200))
        before = resident()
        fuzzer = over_connection(server.target, talk)
        grown = resident() - before
        fuzzer.sessions |= first.sessions
        fuzzer.bugs += first.bugs
        assert not fuzzer.bugs, f"{len(fuzzer.bugs)} bugs, as\n" + "\n".join(fuzzer.bugs[:5])
        assert grown < room, f"{seeds}: {grown / MIB:.0f} MiB more than before"
        answered = {method for method, code in fuzzer.codes if code == "OK"} - {"GetStatus"}  # the server's own
        assert answered == METHODS, fuzzer.codes
        check_health(service, server.target, fuzzer)


def test_a_service_survives_whatever_it_is_sent():
    given = os.environ.get(SEED)
    fuzz(5_000 if given else 500, [given] if given else SEEDS, 300 * MIB)


def test_a_leaf_whose_numbers_overflow_is_no_bug(server):
    service, target = server
    largest = np.int32(np.iinfo(np.int32).max)
    pair = value_to_proto((largest, largest), fl.StructType([np.int32, np.int32]))

    async def overflow(fuzzer: Fuzzer) -> None:
        executor = plain.ExecutorId(id=await open_session(fuzzer))

        async def made(method: str, request: plain.CreateValueRequest | plain.CreateCallRequest) -> plain.ValueRef:
            (answer,) = await fuzzer.send(Request(method, [request.SerializeToString()]))
            return plain.CreateValueResponse.FromString(answer).value_ref

        function = plain.CreateValueRequest(executor=executor, value=plain.Value(computation=FUNCTIONS[0].proto))
        called = plain.CreateCallRequest(
            executor=executor,
            function_ref=await made("CreateValue", function),
            argument_ref=await made("CreateValue", plain.CreateValueRequest(executor=executor, value=pair)),
        )
        compute = plain.ComputeRequest(executor=executor, value_ref=await made("CreateCall", called))
        await fuzzer.send(Request("Compute", [compute.SerializeToString()]))

    fuzzer = over_connection(target, overflow)
    assert not fuzzer.bugs, fuzzer.bugs
    assert fuzzer.codes["Compute", "OK"] == 1
    check_health(service, target, fuzzer)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_service_survives_a_long_siege():
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(10**9))
    print(f"{SEED}={seed} repeats this run")
    fuzz(100_000, [seed], 600 * MIB)


@pytest.fixture
def server():
    service = ExecutorService(fedstack.local_executor_factory(), limits=LIMITS)
    with ServerThread(GrpcServer([service])) as thread:
        yield service, thread.target


async def open_session(fuzzer: Fuzzer) -> str:
    answer = await fuzzer.send(Request("GetExecutor", [fb.get_executor(clients=CLIENTS)]))
    return plain.GetExecutorResponse.FromString(answer[0]).executor.id


@pytest.mark.parametrize("harm", [hostile_requests.deep, hostile_requests.huge])
def test_requests_that_mean_harm_do_none(server, harm):
    service, target = server
    before = resident()

    async def attack(fuzzer: Fuzzer) -> None:
        for request in harm(await open_session(fuzzer)):
            await fuzzer.send(request)

    fuzzer = over_connection(target, attack)
    assert not fuzzer.bugs, "\n".join(fuzzer.bugs[:5])
    assert resident() - before < 300 * MIB
    check_health(service, target, fuzzer)


def test_computations_that_unfold_without_end_are_refused(server):
    service, target = server

    async def attack(fuzzer: Fuzzer) -> None:
        session = await open_session(fuzzer)
        value = fb.create_value(session.encode(), fb.array(fb.listed(fb.INT32, [1])))
        made = await fuzzer.send(Request("CreateValue", [value]))
        argument = plain.CreateValueResponse.FromString(made[0]).value_ref.id
        for request in hostile_requests.unfolding(session, argument):
            await fuzzer.send(request)

    fuzzer = over_connection(target, attack)
    assert not fuzzer.bugs, "\n".join(fuzzer.bugs[:5])
    assert (fuzzer.codes["Evaluate", "OK"], fuzzer.codes["Evaluate", "RESOURCE_EXHAUSTED"]) == (2, 2)
    check_health(service, target, fuzzer)


def test_what_the_fuzzer_begins_with_is_right(server):
    """Or it would not get far."""
    service, target = server

    async def send_all(fuzzer: Fuzzer) -> None:
        session = await open_session(fuzzer)
        executor = plain.ExecutorId(id=session)
        values = [value_to_proto(payload, type_spec) for payload, type_spec in VALUES]
        values += [plain.Value(computation=function.proto) for function in FUNCTIONS]
        for value in values:
            request = plain.CreateValueRequest(value=value, executor=executor)
            await fuzzer.send(Request("CreateValue", [request.SerializeToString()]))
        for phase, inputs, arguments in PHASES:
            await fuzzer.send(phase_request(session, phase, inputs, arguments))

    fuzzer = over_connection(target, send_all)
    assert fuzzer.codes == {
        ("GetExecutor", "OK"): 1,
        ("CreateValue", "OK"): len(VALUES) + len(FUNCTIONS),
        ("RunPhase", "OK"): len(PHASES),
    }
    check_health(service, target, fuzzer)
