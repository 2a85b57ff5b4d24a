"""Who attends as a data worker proves that it may, and no token goes to an address that a stranger has named."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from calling import WALL
from certificate_files import write_certificates
from dispatching import Peer

from fedstack.errors import AuthenticationError, FedstackError, MembershipError
from fedstack.program import DatasetDataSource
from fedstack.service import ServerCredentials
from fedstack.service.data import (
    Dataset,
    DispatcherConfig,
    DispatchServer,
    WorkerConfig,
    WorkerServer,
    distribute,
    register_dataset,
)
from fedstack.service.data.reading import readers
from fedstack.transport.grpc.credentials import ClientCredentials

ALICE, STRANGER = ClientCredentials(token="token-of-alice"), ClientCredentials(token="token-of-a-stranger")
NUMBERS = Dataset.range(20)


class Listener(grpc.GenericRpcHandler):
    """A server that does nothing but look at what comes with calls.

    Attributes:
      seen: The metadata of calls.
      target: Its address.
    """

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.server = grpc.server(ThreadPoolExecutor(2))
        self.server.add_generic_rpc_handlers((self,))
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def service(self, handler_call_details: Any) -> None:
        self.seen.append(handler_call_details.invocation_metadata)


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    yield found
    found.server.stop(None).wait(WALL)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file with the tokens of clients."""
    path = tmp_path / "tokens"
    path.write_text(f"{ALICE.token}\n{STRANGER.token}\n")
    return path


@pytest.fixture
def worker_token(tmp_path: Path) -> Path:
    """A file with the token of workers."""
    path = tmp_path / "worker-token"
    path.write_text("token-of-workers\n")
    return path


def read_as_alice(target: str, credentials: ClientCredentials = ALICE) -> None:
    """Reads all that there is; a listener has nothing to read."""
    options: dict[str, Any] = {"credentials": credentials, "dispatcher_timeout_ms": 500}
    with pytest.raises(FedstackError):
        list(NUMBERS.apply(distribute("distributed_epoch", target, **options)))


@pytest.mark.long
def test_a_stranger_with_a_token_of_clients_is_no_worker(listener: Listener, tokens: Path) -> None:
    with DispatchServer(DispatcherConfig(token_file=tokens)) as dispatcher, Peer(dispatcher.target, STRANGER) as peer:
        for leaves in (False, True):
            with pytest.raises(MembershipError, match=r"proves its role.*--worker-token-file.*worker_addresses"):
                peer.attend(b"w", listener.target, leaves)
        assert not peer.ask(lambda stub: stub.list_workers()).worker
        read_as_alice(dispatcher.target)
    assert listener.seen == []


def test_a_stranger_with_a_certificate_of_clients_is_no_worker(listener: Listener, tmp_path: Path) -> None:
    files = write_certificates(tmp_path)
    server = ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )
    ours = ClientCredentials.from_files(
        root_certificates=files.ca, certificate=files.client_cert, private_key=files.client_key
    )
    with DispatchServer(DispatcherConfig(credentials=server)) as dispatcher, Peer(dispatcher.target, ours) as peer:
        with pytest.raises(MembershipError, match="proves its role"):
            peer.attend(b"w", listener.target)


def test_workers_prove_that_they_may_attend_with_a_token_of_their_own(
    listener: Listener, tokens: Path, worker_token: Path
) -> None:
    config = DispatcherConfig(token_file=tokens, worker_token_file=worker_token)
    with DispatchServer(config) as dispatcher, Peer(dispatcher.target, STRANGER) as peer:
        with pytest.raises(MembershipError, match="Expected a token for data workers, found no token"):
            peer.attend(b"w", listener.target)
        worker = WorkerConfig(
            dispatcher.target,
            client_credentials=ALICE,
            worker_token_file=worker_token,
            dispatcher_timeout_ms=1000 * WALL,
        )
        with WorkerServer(worker):
            (there,) = peer.ask(lambda stub: stub.list_workers()).worker
            with pytest.raises(MembershipError, match="Expected a token for data workers"):
                peer.attend(there.worker, there.address, leaves=True)
            assert sorted(NUMBERS.apply(distribute("distributed_epoch", dispatcher, credentials=ALICE))) == [*range(20)]
        with pytest.raises(MembershipError, match="Expected a token for data workers, found another token"):
            WorkerServer(WorkerConfig(dispatcher.target, worker_token_file=tokens, **_as(ALICE)))


def _as(credentials: ClientCredentials) -> dict[str, Any]:
    return {"client_credentials": credentials, "dispatcher_timeout_ms": 1000 * WALL}


@pytest.mark.parametrize("scheme", ["", "grpc://"])
@pytest.mark.parametrize("tls", [False, True])
def test_no_token_goes_to_a_worker_without_tls(
    scheme: str, tls: bool, listener: Listener, tokens: Path, tmp_path: Path
) -> None:
    files = write_certificates(tmp_path)
    server = ServerCredentials.from_files(certificate=files.server_cert, private_key=files.server_key)
    ours = ClientCredentials.from_files(root_certificates=files.ca, token=ALICE.token) if tls else ALICE
    config = DispatcherConfig(
        token_file=tokens, credentials=server if tls else None, worker_addresses=["127.0.0.1:%port%"]
    )
    with DispatchServer(config) as dispatcher, Peer(dispatcher.target, ours) as peer:
        peer.attend(b"w", f"{scheme}{listener.target}")
        read_as_alice(dispatcher.target, ours)
        register_dataset(
            dispatcher, Dataset.from_arrays({"x": [], "of": []}).by_client("of"), dataset_id="rows", credentials=ours
        )
        with pytest.raises(FedstackError):
            _ = DatasetDataSource(dispatcher.target, "rows", ours).client_ids
    assert bool(listener.seen) == (not tls), "it has been dialled"
    assert "authorization" not in [key for metadata in listener.seen for key, _ in metadata]


def test_a_worker_that_asks_for_a_token_without_tls_is_refused_with_what_to_do(
    tokens: Path, worker_token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "readers_here", {})  # as if it were elsewhere
    config = DispatcherConfig(token_file=tokens, worker_token_file=worker_token)
    with DispatchServer(config) as dispatcher:
        with WorkerServer(
            WorkerConfig(dispatcher.target, token_file=tokens, worker_token_file=worker_token, **_as(ALICE))
        ):
            with pytest.raises(AuthenticationError, match="it is sent only over TLS.*certificate"):
                list(NUMBERS.apply(distribute("distributed_epoch", dispatcher, credentials=ALICE)))
