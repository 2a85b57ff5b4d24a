"""Servers with certificates and tokens: who gets in, and who does not."""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from calling import WALL, call, on_loop, path_of
from certificate_files import CertificateFiles, write_certificates
from echo_service import ECHO, EchoService

from fedstack import errors
from fedstack.service.host.calls.call_log import CallLog
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials
from fedstack.transport.grpc.grpc_connection import GrpcConnection
from fedstack.transport.peers.connection import Connection
from fedstack.transport.stream.found_connection import FoundConnection
from fedstack.transport.wire.addresses import parse_target

HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
# A refusal is final only when gRPC has tried again for a while; tests need not wait for that.
SOON = 5.0


def server_credentials(files: CertificateFiles, *, mutual: bool = False) -> ServerCredentials:
    return ServerCredentials.from_files(
        certificate=files.server_cert,
        private_key=files.server_key,
        client_root_certificates=files.ca if mutual else None,
    )


def client_credentials(files: CertificateFiles, *, mutual: bool = False) -> ClientCredentials:
    return ClientCredentials.from_files(
        root_certificates=files.ca,
        certificate=files.client_cert if mutual else None,
        private_key=files.client_key if mutual else None,
    )


@pytest.fixture
def tls_server(files: CertificateFiles) -> Iterator[GrpcServer]:
    with ServerThread(GrpcServer([EchoService()], credentials=server_credentials(files))) as thread:
        yield thread.server


@pytest.fixture
def mutual_server(files: CertificateFiles) -> Iterator[GrpcServer]:
    with ServerThread(GrpcServer([EchoService()], credentials=server_credentials(files, mutual=True))) as thread:
        yield thread.server


def is_refused(target: str, credentials: ClientCredentials | None) -> bool:
    try:
        call(target, "Unary", b"x", SOON, credentials)
    except (errors.AuthenticationError, errors.WorkerUnavailableError, errors.DeadlineExceededError):
        return True
    return False


def test_tls_lets_in_whoever_knows_the_authority(tls_server: GrpcServer, files: CertificateFiles) -> None:
    assert call(tls_server.target, "Unary", b"x", credentials=client_credentials(files)) == b"x"
    name = tls_server.target.replace("127.0.0.1", "localhost")
    assert call(name, "Unary", b"x", credentials=client_credentials(files)) == b"x"


def test_tls_refuses_plaintext_and_strangers(
    tls_server: GrpcServer, files: CertificateFiles, others: CertificateFiles
) -> None:
    assert is_refused(tls_server.target, None)
    assert is_refused(tls_server.target, client_credentials(others))


def test_a_certificate_is_good_only_for_its_own_names(others: CertificateFiles) -> None:
    with ServerThread(GrpcServer([EchoService()], credentials=server_credentials(others))) as thread:
        assert is_refused(thread.target, client_credentials(others))
        known = attrs.evolve(client_credentials(others), server_name="other.example")
        assert call(thread.target, "Unary", b"x", credentials=known) == b"x"


def test_mutual_tls_lets_in_only_clients_with_a_certificate_of_the_authority(
    mutual_server: GrpcServer, files: CertificateFiles, others: CertificateFiles
) -> None:
    mine = client_credentials(files, mutual=True)
    assert call(mutual_server.target, "Unary", b"x", credentials=mine) == b"x"
    assert is_refused(mutual_server.target, client_credentials(files))
    theirs = attrs.evolve(client_credentials(others, mutual=True), root_certificates=files.ca.read_bytes())
    assert is_refused(mutual_server.target, theirs)
    assert is_refused(mutual_server.target, None)


def test_with_tls_any_address_may_be_listened_at(files: CertificateFiles) -> None:
    with ServerThread(GrpcServer([EchoService()], host="0.0.0.0", credentials=server_credentials(files))) as thread:
        assert call(thread.target, "Unary", b"x", credentials=client_credentials(files)) == b"x"


def test_a_token_alone_does_not_make_an_address_safe() -> None:
    with pytest.raises(errors.InvalidValueError, match="Expected TLS"):
        GrpcServer([EchoService()], host="0.0.0.0", credentials=ServerCredentials(tokens=("secret",)))


@pytest.mark.parametrize("token", [None, "wrong", "secre", "secrets", "SECRET"])
@pytest.mark.parametrize("method", ["Unary", "Download", "Upload", "Exchange", "Nothing", REFLECTION])
def test_without_the_token_there_is_no_answer_from_any_method(method: str, token: str | None) -> None:
    echo = EchoService()
    with ServerThread(GrpcServer([echo], credentials=ServerCredentials(tokens=("secret", "other")))) as thread:
        with pytest.raises(errors.AuthenticationError) as raised:
            call(thread.target, method, b"", SOON, ClientCredentials(token=token))
        counts = list(thread.server.call_counts)
    assert counts == [("(other)", "UNAUTHENTICATED", 1)]
    assert "secret" not in str(raised.value)
    assert ECHO not in str(raised.value)


def test_calls_without_the_token_are_logged_once_a_minute_for_each_peer(caplog: pytest.LogCaptureFixture) -> None:
    with ServerThread(GrpcServer([EchoService()], credentials=ServerCredentials(tokens=("secret",)))) as thread:
        for token in ("guessed", "guessed", None):
            with pytest.raises(errors.AuthenticationError):
                call(thread.target, "Unary", b"", SOON, ClientCredentials(token=token))
    [line] = [record.getMessage() for record in caplog.records if "Refused a call" in record.getMessage()]
    assert line.startswith("Refused a call from ipv4:127.0.0.1 with a token that this server does not accept; ")
    assert "guessed" not in caplog.text


def test_what_was_not_logged_of_refusals_is_counted_in_the_next_line(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = CallLog(lambda: now)
    for port in range(5):
        log.refused(f"ipv6:%5B::1%5D:{port}", had_token=False)
        log.refused(f"ipv4:10.0.0.1:{port}", had_token=True)
    now = 61.0
    log.refused("ipv6:%5B::1%5D:7", had_token=False)
    log.refused("unix:", had_token=False)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "Refused a call from ipv6:[::1] with no token",
        "Refused a call from ipv4:10.0.0.1 with a token that this server does not accept",
        "Refused a call from ipv6:[::1] with no token (4 more since the last line)",
        "Refused a call from a Unix socket with no token",
    ]


def test_refusals_of_many_peers_do_not_take_more_and_more_memory() -> None:
    log = CallLog()
    for number in range(1500):
        log.refused(f"ipv4:10.0.{number // 256}.{number % 256}:1", had_token=False)
    assert repr(log) == "<CallLog of 1000 peers refused, 0 whose calls failed>"


@pytest.mark.parametrize("token", [None, "wrong", "secret"])
def test_health_is_told_with_and_without_the_token(token: str | None) -> None:
    with ServerThread(GrpcServer([EchoService()], credentials=ServerCredentials(tokens=("secret",)))) as thread:
        assert call(thread.target, HEALTH, b"", SOON, ClientCredentials(token=token)) == b"\x08\x01"


def test_each_of_the_tokens_lets_in_whatever_the_method() -> None:
    async def stream(target: str, credentials: ClientCredentials) -> list[bytes]:
        connection = GrpcConnection(parse_target(target), credentials)
        found = [m async for m in connection.stream(f"/{ECHO}/Stream", [b"a", b"b"])]
        await connection.close()
        return found

    with ServerThread(GrpcServer([EchoService()], credentials=ServerCredentials(tokens=("secret", "other")))) as thread:
        for token in ("secret", "other"):
            credentials = ClientCredentials(token=token)
            assert call(thread.target, "Unary", b"x", credentials=credentials) == b"x"
            assert call(thread.target, HEALTH, b"", credentials=credentials)
            assert on_loop(lambda: stream(thread.target, credentials)) == [b"a", b"b"]  # noqa: B023


def test_tokens_and_certificates_go_together(files: CertificateFiles) -> None:
    credentials = attrs.evolve(server_credentials(files), tokens=("secret",))
    with ServerThread(GrpcServer([EchoService()], credentials=credentials)) as thread:
        known = client_credentials(files)
        with pytest.raises(errors.AuthenticationError):
            call(thread.target, "Unary", b"", WALL, known)
        assert call(thread.target, "Unary", b"x", WALL, attrs.evolve(known, token="secret")) == b"x"


def test_certificates_that_cannot_be_used_are_told_apart(files: CertificateFiles, others: CertificateFiles) -> None:
    pem = b"-----BEGIN %s-----\nAAAA\n-----END %s-----\n"
    broken, broken_key = pem % (b"CERTIFICATE", b"CERTIFICATE"), pem % (b"PRIVATE KEY", b"PRIVATE KEY")
    good = server_credentials(files, mutual=True)
    for credentials, complaint in (
        (attrs.evolve(good, private_key=others.server_key.read_bytes()), "found the key of another certificate"),
        (attrs.evolve(good, certificate=broken), "found content that cannot be read"),
        (attrs.evolve(good, private_key=broken_key), "found content that cannot be read"),
        (attrs.evolve(good, client_root_certificates=broken), "Expected certificates of authorities in PEM"),
    ):
        with pytest.raises(errors.InvalidValueError, match=complaint):
            ServerThread(GrpcServer([EchoService()], credentials=credentials)).start()


def test_a_key_that_cannot_be_read_is_told_with_its_name(tmp_path: Path, files: CertificateFiles) -> None:
    with pytest.raises(errors.InvalidValueError, match="Cannot read the file .*nothing.key"):
        ServerCredentials.from_files(certificate=files.server_cert, private_key=tmp_path / "nothing.key")


def replaced(path: Path, content: bytes) -> None:
    """Replaces a file in one step, as whoever renews certificates does."""
    other = path.with_name(f"{path.name}.new")
    other.write_bytes(content)
    other.replace(path)


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WALL
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def copied(files: CertificateFiles, folder: Path) -> CertificateFiles:
    folder.mkdir()
    return CertificateFiles(*(Path(shutil.copy(path, folder)) for path in files))


@pytest.mark.long
def test_certificates_and_authority_are_read_again_when_their_files_change(
    tmp_path: Path, files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    new = write_certificates(tmp_path / "new")
    served = copied(files, tmp_path / "served")
    old_client, new_client = client_credentials(files, mutual=True), client_credentials(new, mutual=True)
    with ServerThread(GrpcServer([EchoService()], credentials=server_credentials(served, mutual=True))) as thread:

        def lets_in(credentials: ClientCredentials) -> bool:
            return not is_refused(thread.target, credentials)

        assert lets_in(old_client)
        # As long as the files do not fit each other, nothing changes.
        replaced(served.server_cert, new.server_cert.read_bytes())
        time.sleep(1.1)
        assert lets_in(old_client)
        replaced(served.server_key, new.server_key.read_bytes())
        replaced(served.ca, new.ca.read_bytes())
        assert soon(lambda: lets_in(new_client))
        assert is_refused(thread.target, old_client)
        replaced(served.server_key, b"nonsense")
        time.sleep(1.1)
        assert lets_in(new_client)
        assert lets_in(new_client)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(": ")[2][:40] for line in warnings] == [
        "Expected a certificate and its private k",
        f"Expected {served.server_key} in PEM"[:40],
    ]


@pytest.mark.long
def test_tokens_are_read_again_when_their_file_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_text("old\n")
    with ServerThread(GrpcServer([EchoService()], credentials=ServerCredentials.from_files(token_file=path))) as thread:

        def lets_in(token: str) -> bool:
            return not is_refused(thread.target, ClientCredentials(token=token))

        assert lets_in("old")
        assert not lets_in("new")
        replaced(path, b"old\nnew\n")
        assert soon(lambda: lets_in("new"))
        assert lets_in("old")
        replaced(path, b"new\n")
        assert soon(lambda: not lets_in("old"))
        replaced(path, b"")
        time.sleep(1.1)
        assert [lets_in("new"), lets_in("old")] == [True, False]
        path.unlink()
        time.sleep(1.1)
        assert [lets_in("new"), lets_in("old")] == [True, False]
    assert [record.getMessage() for record in caplog.records if "Keeping the previous" in record.getMessage()] == [
        f"Keeping the previous content of {path}: Expected at least one token in {path}, found none; "
        "add a line with a token"
    ]


@pytest.mark.slow
def test_all_connections_of_a_client_read_its_token_again_when_the_file_changes(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "tokens", tmp_path / "token"
    theirs.write_text("old\n")
    ours.write_text("old\n")
    credentials = ClientCredentials.from_files(token_file=ours)
    assert credentials == ClientCredentials(token="old")
    with ServerThread(
        GrpcServer([EchoService()], credentials=ServerCredentials.from_files(token_file=theirs))
    ) as thread:

        async def work() -> None:
            target = parse_target(thread.target)
            connections: list[Connection] = [GrpcConnection(target, credentials) for _ in range(2)]
            connections += [FoundConnection(target, credentials, transport=way) for way in ("auto", "stream")]
            # Also in the order in which nobody is refused meanwhile: the client may have a stream from before.
            steps = (
                (b"old", b"old"),
                (b"new", b"new"),
                (b"new\nlast", b"new"),
                (b"new\nlast", b"last"),
                (b"last", b"last"),
            )
            for accepted, token in steps:
                replaced(theirs, accepted)
                replaced(ours, token)
                await asyncio.sleep(1.1)  # they look at most once a second
                for connection in connections:
                    assert await connection.unary(path_of("Unary"), b"x", WALL) == b"x"
            for connection in connections:
                await connection.close()

        on_loop(work)


def test_tokens_that_were_not_read_from_a_file_stay(tmp_path: Path, files: CertificateFiles) -> None:
    path = tmp_path / "tokens"
    path.write_text("filed")
    credentials = attrs.evolve(server_credentials(files), tokens=("given",))
    tokens = credentials.renewed_tokens()
    os.utime(files.server_cert)
    assert tokens.get() == ("given",)
    assert ServerCredentials.from_files(token_file=path) == ServerCredentials(tokens=("filed",))
