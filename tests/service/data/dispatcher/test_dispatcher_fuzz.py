"""Whatever a dispatcher is sent, it answers with a status that says what is wrong, and stays in good health."""

import asyncio
import hashlib
import os
import random

import pytest
from dispatching import Consumer, Peer, splits
from fuzz_calls import Fuzzer, over_connection
from fuzz_requests import Request, unary
from fuzz_spoiling import Spoiler

from fedstack.proto import data_service_pb2 as messages
from fedstack.service.data import DispatcherConfig, DispatcherLimits, DispatchServer
from fedstack.transport.peers.executor_stub import PROTOCOL
from fedstack.transport.wire.frames import data_frames, header_frame

SEED = "FEDSTACK_FUZZ_SEED"
SEEDS = [os.environ[SEED]] if SEED in os.environ else ["1", "2", "3"]
LIMITS = DispatcherLimits(max_datasets=20, max_definition_bytes=10_000, max_passes=20, max_consumers=40)
NUMBERS = [0, 0, 1, 2, 3, 10, 2**31, 2**63 - 1, 2**63, 2**64 - 1]


class Drawer:
    """Draws requests that have to do with each other, most of the time."""

    def __init__(self, generator: random.Random) -> None:
        self.choose = generator
        self.digests = [b""]
        self.opened: list[tuple[messages.OpenPassRequest, messages.OpenPassResponse]] = []

    def request(self) -> Request:
        takes = [self.take] * 3
        draw = self.choose.choice(
            [self.register, self.describe, self.open, *takes, self.release, self.attend, self.list_workers]
        )
        return draw()

    def number(self) -> int:
        return self.choose.choice(NUMBERS)

    def register(self) -> Request:
        definition = self.choose.randbytes(self.choose.choice([0, 5, 5000, 20_000]))
        digest = hashlib.sha256(definition).digest()
        dataset = messages.DatasetDescription(
            dataset_id=self.choose.choice(["", "a", "b", "é" * 400, "x" * 2000]),
            digest=digest if self.choose.random() < 0.9 else definition[:32],
            num_splits=self.number(),
            definition_bytes=len(definition) if self.choose.random() < 0.9 else self.number(),
        )
        self.digests.append(digest)
        header = messages.RegisterDatasetRequest(dataset=dataset).SerializeToString()
        return Request("Register", [header_frame(header), *data_frames([memoryview(definition)], 999)])

    def describe(self) -> Request:
        request = messages.DescribeDatasetRequest(digest=self.choose.choice(self.digests), protocol=PROTOCOL)
        if self.choose.random() < 0.3:
            request.dataset_id = self.choose.choice(["a", "nothing"])
        return unary(self.choose.choice(["Describe", "Define"]), request)

    def open(self) -> Request:
        return unary(
            "OpenPass",
            messages.OpenPassRequest(
                digest=self.choose.choice(self.digests),
                job_name=self.choose.choice(["", "a", "b"]),
                repetition=self.number(),
                policy=self.choose.choice([1, 2, 2, 2, 7]),
                guarantee=self.choose.choice([0, 1, 2, 3, 9]),
                consumer=self.choose.choice([b"a", b"b", b""]),
                resumes=self.choose.random() < 0.2,
            ),
        )

    def take(self) -> Request:
        opened, response = self.choose.choice(
            self.opened or [(messages.OpenPassRequest(), messages.OpenPassResponse())]
        )
        request = messages.TakeRequest(
            commit=response.commit,
            pass_id=response.pass_id,
            consumer=opened.consumer,
            number=response.next_number,
            want=self.choose.choice([0, 1, 5, 2**32 - 1]),
            wait_seconds=self.choose.choice([0.0, 0.01, -1.0, float("nan")]),
            finished=[self.number() for _ in range(self.choose.randrange(3))],
            given_back=[self.number() for _ in range(self.choose.randrange(3))],
            workers_version=self.number(),
        )
        response.next_number = min(2**63, response.next_number + 1)
        return unary("Take", request)

    def release(self) -> Request:
        opened, response = self.choose.choice(
            self.opened or [(messages.OpenPassRequest(), messages.OpenPassResponse())]
        )
        request = messages.ReleasePassRequest(
            pass_id=response.pass_id, consumer=opened.consumer, finished=[self.number()], given_back=[self.number()]
        )
        return unary("Release", request)

    def attend(self) -> Request:
        address = self.choose.choice(["one:1", "grpc+local://localhost:1", "", "nonsense", "x" * 2000])
        worker = messages.DataWorkerAddress(worker=self.choose.choice([b"v", b"w", b""]), address=address)
        leaves = self.choose.random() < 0.2
        return unary("Attend", messages.AttendRequest(worker=worker, leaves=leaves, protocol=PROTOCOL))

    def list_workers(self) -> Request:
        return unary("ListWorkers", messages.ListWorkersRequest())


async def talk(fuzzer: Fuzzer, seed: str, requests: int) -> None:
    choose = random.Random(seed)
    drawer, spoiler = Drawer(choose), Spoiler(choose)
    for _ in range(requests):
        request = drawer.request()
        fate = choose.random()
        if fate < 0.05:
            request = spoiler.garbage(request.method)
        elif fate < 0.35:
            request = spoiler.spoilt(request)
        answers = await fuzzer.send(request)
        if answers and request.method == "OpenPass":
            asked = messages.OpenPassRequest.FromString(request.frames[0])
            drawer.opened.append((asked, messages.OpenPassResponse.FromString(answers[0])))


@pytest.mark.long
def test_a_dispatcher_survives_whatever_it_is_sent() -> None:
    async def talk_all(fuzzer: Fuzzer) -> None:
        for seed in SEEDS:
            await asyncio.gather(*(talk(fuzzer, f"{seed} {number}", 150) for number in range(4)))

    with DispatchServer(DispatcherConfig(limits=LIMITS)) as server:
        fuzzer = over_connection(server.target.removeprefix("grpc://"), talk_all)
        assert not fuzzer.bugs, f"{len(fuzzer.bugs)} bugs, as\n" + "\n".join(fuzzer.bugs[:5])
        answered = {method for method, code in fuzzer.codes if code == "OK"}
        assert answered == {method.name for method in messages.DESCRIPTOR.services_by_name["DataDispatcher"].methods}

    with DispatchServer(DispatcherConfig(limits=LIMITS)) as server, Peer(server.target) as peer:
        assert splits(Consumer(peer, peer.register()).take_all()) == list(range(10))


@pytest.mark.parametrize("spoilt", [b"\xff" * 5000, b"\x0a" * (2 << 20)])
def test_bytes_that_are_no_message_are_refused(peer: Peer, spoilt: bytes) -> None:
    for method in ("Describe", "OpenPass", "Take", "Release", "Attend"):
        path = f"/fedstack.v1.DataDispatcher/{method}"
        with pytest.raises((ValueError, RuntimeError)):
            peer.ask(lambda stub, path=path: stub.connection.unary(path, spoilt, 30.0))
