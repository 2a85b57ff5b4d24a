"""A dispatcher as the server of a program: how it starts and ends, and whom it lets in."""

import asyncio
import math
from pathlib import Path

import attrs
import pytest
from certificate_files import CertificateFiles
from dispatching import Consumer, Peer, splits

from fedstack.errors import AddressError, AuthenticationError, ClosedError, InvalidValueError, WorkerUnavailableError
from fedstack.membership.reaching import answered
from fedstack.service.data import DispatcherConfig, DispatchServer
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials


@pytest.mark.parametrize("protocol", ["grpc", "grpc+local"])
def test_a_dispatcher_starts_once_and_stops_once(protocol: str) -> None:
    server = DispatchServer(DispatcherConfig(protocol=protocol), start=False)
    with pytest.raises(ClosedError, match=r"call start\(\) first"):
        _ = server.target
    with pytest.raises(ClosedError, match=r"call start\(\) first"):
        server.join()
    server.start()
    server.start()
    assert server.target.startswith(f"{protocol}://")
    assert not server.join(0)
    with Peer(server.target) as peer:
        peer.register()
    server.stop()
    server.stop()
    assert server.join()
    assert repr(server) == "<DispatchServer stopped>"
    with pytest.raises(ClosedError):
        server.start()


def test_the_plain_form_takes_a_port() -> None:
    with DispatchServer() as any_port:
        port = int(any_port.target.rpartition(":")[2])
        with pytest.raises(AddressError, match=f"Port {port} of 127.0.0.1 is in use"):
            DispatchServer(port=port)
    with DispatchServer(port=port) as server:
        assert server.target == f"grpc://127.0.0.1:{port}"
    with DispatchServer(protocol="grpc+local") as server:
        assert server.target.startswith("grpc+local://")
    with pytest.raises(InvalidValueError, match="found both"):
        DispatchServer(DispatcherConfig(), port=5050)
    with pytest.raises(InvalidValueError, match="Expected a DispatcherConfig, found 5050"):
        DispatchServer(5050)  # type: ignore[arg-type]


def test_a_block_with_an_event_loop_starts_and_stops_it() -> None:
    async def run() -> DispatchServer:
        async with DispatchServer(start=False) as server:
            assert server.target
        return server

    assert asyncio.run(run()).join(0)


def test_a_dispatcher_that_nothing_refers_to_stops_and_leaves_its_journal(tmp_path: Path) -> None:
    config = DispatcherConfig(work_dir=tmp_path, fault_tolerant_mode=True)
    server = DispatchServer(config)
    hosted = server.server
    del server
    from fedstack.transport.peers.io_loop import io_loop

    io_loop.run_sync(hosted.wait(), 10)
    DispatchServer(config).stop()


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"port": -1}, "port"),
        ({"port": 65_536}, "port"),
        ({"protocol": "http"}, '"grpc"'),
        ({"fault_tolerant_mode": True}, "Expected a work_dir for fault_tolerant_mode, found None"),
        ({"worker_addresses": "one:1"}, "list of non-empty addresses, found 'one:1'"),
        ({"worker_addresses": ["one:1", 2]}, "list of non-empty addresses, found .*2"),
        *(
            ({name: value}, f"Expected {name} ")
            for name in ("job_gc_check_interval_ms", "job_gc_timeout_ms", "worker_timeout_ms")
            for value in (0, -2, 0.5, True)
        ),
        ({"worker_timeout_ms": -1}, "Expected worker_timeout_ms "),
        ({"host": "0.0.0.0"}, "Expected TLS for an address that other machines can reach"),
        ({"credentials": "secret"}, "Expected credentials of type fedstack.service.ServerCredentials"),
        ({"token_file": "/nowhere/token"}, "/nowhere/token"),
    ],
)
def test_configurations_that_cannot_be_are_refused(fields: dict[str, object], found: str) -> None:
    with pytest.raises(InvalidValueError, match=found):
        DispatchServer(DispatcherConfig(**fields))  # type: ignore[arg-type]


def test_minus_one_stands_for_never_where_passes_are_collected() -> None:
    times = DispatcherConfig(job_gc_timeout_ms=-1, job_gc_check_interval_ms=-1, resume_timeout_ms=-1).times()
    assert (times.idle, times.check, times.resume) == (math.inf, math.inf, math.inf)
    with DispatchServer(DispatcherConfig(job_gc_timeout_ms=-1, job_gc_check_interval_ms=1)) as server:
        with Peer(server.target) as peer:
            digest = peer.register()
            consumer = Consumer(peer, digest, job_name="shared")
            taken = consumer.take(1).range
            consumer.release()
            again = Consumer(peer, digest, job_name="shared")
            assert again.opened.pass_id == consumer.opened.pass_id
            assert not {one.id for one in again.take_all()} & {one.id for one in taken}


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        DispatcherConfig().port = 1  # type: ignore[misc]


def test_who_waits_is_sent_away_when_a_dispatcher_stops() -> None:
    with DispatchServer() as server, Peer(server.target) as peer:
        consumer = Consumer(peer, peer.register(), policy=1)
        assert not consumer.take(1).range

        async def wait_while_it_stops() -> None:
            last = consumer.last
            assert last is not None
            last.number, last.wait_seconds, last.workers_version = last.number + 1, 60.0, consumer.version
            waiting = asyncio.ensure_future(peer.stub.take(last))
            await asyncio.sleep(0.05)
            stopping = asyncio.ensure_future(server.server.stop(30.0))
            with pytest.raises(WorkerUnavailableError):
                await waiting
            await asyncio.wait_for(stopping, 10)

        peer.ask(lambda stub: wait_while_it_stops())


def test_mutual_tls_and_tokens_say_who_may_ask(files: CertificateFiles, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    theirs = ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )
    with DispatchServer(DispatcherConfig(credentials=theirs, token_file=tmp_path / "token")) as server:
        assert server.target.startswith("grpcs://127.0.0.1:")
        ours = ClientCredentials.from_files(
            root_certificates=files.ca,
            certificate=files.client_cert,
            private_key=files.client_key,
            token_file=tmp_path / "token",
        )
        with Peer(server.target, ours) as peer:
            assert splits(Consumer(peer, peer.register()).take_all()) == list(range(10))
        without_token = ClientCredentials.from_files(
            root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key
        )
        without_certificate = ClientCredentials(root_certificates=files.ca.read_bytes(), token="secret")
        for bad in (without_token, without_certificate):
            with Peer(server.target, bad) as peer, pytest.raises(AuthenticationError):
                peer.ask(lambda stub: answered(stub, stub.list_workers, None))
