"""Channels to real servers: what is dialled how, who is let in, and what a failure is reported as."""

import contextlib

import grpc
import grpc.aio
import pytest
from certificate_files import write_certificates

from fedstack.errors import AuthenticationError, InvalidValueError, ResourceLimitError, WorkerUnavailableError
from fedstack.service.host.limits import ServerLimits
from fedstack.transport.grpc import channels
from fedstack.transport.grpc.channels import CLIENT_OPTIONS, SERVER_OPTIONS, open_channel
from fedstack.transport.grpc.credential_files import bearer_token
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials, server_credentials
from fedstack.transport.wire.addresses import Target, parse_target
from fedstack.transport.wire.status import MAX_DETAILS_BYTES, error_from_status

_SECONDS = 30.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return write_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Certificates of an authority that nobody here trusts, for names that are not dialled."""
    return write_certificates(tmp_path_factory.mktemp("others"), names=["elsewhere"])


async def echo(request, context):
    if request == b"token":
        return bearer_token(context.invocation_metadata()).encode()
    if request.startswith(b"fail"):
        details = (("grpc-status-details-bin", request),)
        await context.abort(grpc.StatusCode.NOT_FOUND, "m" * 1024, details)
    return request


@contextlib.asynccontextmanager
async def serving(credentials=None, address="localhost:0"):
    """Yields the address of an echo server."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Echo": handler}),))
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, server_credentials(credentials))
    await server.start()
    try:
        yield address.replace(":0", f":{port}")
    finally:
        await server.stop(None)


async def call(channel, request=b"hello", metadata=()):
    return await channel.unary_unary("/test.Echo/Echo")(request, timeout=_SECONDS, metadata=metadata)


async def answer_from(address, credentials=None, request=b"hello", **options):
    """Calls once, and raises what a stub would."""
    async with open_channel(parse_target(address), credentials, **options) as channel:
        try:
            return await call(channel, request, (credentials or ClientCredentials()).metadata)
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error.code().value[0], error.details() or "", None, address) from None


def tls(files):
    return ServerCredentials.from_files(certificate=files.server_cert, private_key=files.server_key)


def mutual_tls(files):
    return ServerCredentials.from_files(
        certificate=files.server_cert, private_key=files.server_key, client_root_certificates=files.ca
    )


async def test_a_server_is_dialled_in_plaintext_by_default():
    async with serving() as address:
        assert await answer_from(address) == b"hello"
        assert await answer_from(f"grpc://{address}") == b"hello"


async def test_a_socket_is_dialled_by_its_path(tmp_path):
    async with serving(address=f"unix:{tmp_path}/s") as address:
        assert await answer_from(address, ClientCredentials(token="secret"), b"token") == b"secret"


async def test_a_token_arrives_over_the_loopback_device():
    async with serving() as address:
        assert await answer_from(address, ClientCredentials(token="secret"), b"token") == b"secret"


async def test_a_token_arrives_over_tls(certificates):
    async with serving(tls(certificates)) as address:
        credentials = ClientCredentials(root_certificates=certificates.ca.read_bytes(), token="secret")
        assert await answer_from(address, credentials, b"token") == b"secret"
        assert await answer_from(f"grpcs://{address}", credentials, b"token") == b"secret"


async def test_a_token_does_not_leave_the_machine_in_plaintext():
    credentials = ClientCredentials(token="secret")
    with pytest.raises(InvalidValueError, match="a TLS target for sending a token to another machine, found") as caught:
        open_channel(Target("worker.example:8000"), credentials)
    assert "dial grpcs://worker.example:8000" in str(caught.value)
    assert "secret" not in str(caught.value)
    await open_channel(Target("worker.example:8000", True), credentials).close()
    await open_channel(Target("worker.example:8000"), credentials, allow_plaintext_token=True).close()


async def test_certificates_are_not_left_out_silently(certificates):
    credentials = ClientCredentials(root_certificates=certificates.ca.read_bytes())
    with pytest.raises(InvalidValueError, match="found the plaintext target worker:8000; dial grpcs://worker:8000"):
        open_channel(parse_target("grpc://worker:8000"), credentials)


async def test_both_sides_may_show_certificates(certificates):
    async with serving(mutual_tls(certificates)) as address:
        credentials = ClientCredentials.from_files(
            root_certificates=certificates.ca,
            certificate=certificates.client_cert,
            private_key=certificates.client_key,
        )
        assert await answer_from(address, credentials) == b"hello"


async def test_a_server_may_have_another_name_than_the_one_dialled(others):
    credentials = ClientCredentials.from_files(root_certificates=others.ca, server_name="elsewhere")
    async with serving(tls(others)) as address:
        assert await answer_from(address, credentials) == b"hello"


async def test_a_server_of_another_authority_is_not_trusted(certificates, others):
    async with serving(tls(certificates)) as address:
        with pytest.raises(
            AuthenticationError, match=f"Cannot use the server at {address}: its certificate is not from a"
        ):
            await answer_from(address, ClientCredentials.from_files(root_certificates=others.ca))
        with pytest.raises(AuthenticationError, match="a trusted authority; pass the correct root_certificates"):
            await answer_from(f"grpcs://{address}")


async def test_a_server_of_another_name_is_not_trusted(others):
    async with serving(tls(others)) as address:
        with pytest.raises(AuthenticationError):
            await answer_from(address, ClientCredentials.from_files(root_certificates=others.ca))


async def test_a_certificate_that_has_run_out_is_not_trusted(tmp_path):
    files = write_certificates(tmp_path, expired=True)
    async with serving(tls(files)) as address:
        with pytest.raises(AuthenticationError):
            await answer_from(address, ClientCredentials.from_files(root_certificates=files.ca))


async def test_a_server_without_tls_does_not_understand_a_client_with_it(certificates):
    async with serving() as address:
        with pytest.raises(AuthenticationError):
            await answer_from(address, ClientCredentials.from_files(root_certificates=certificates.ca))


async def test_a_server_that_hangs_up_may_want_credentials(certificates):
    async with serving(mutual_tls(certificates)) as address:
        # From this side it looks as if the server had crashed, so it is a retryable error.
        for credentials in (None, ClientCredentials.from_files(root_certificates=certificates.ca)):
            with pytest.raises(
                WorkerUnavailableError,
                match=": it closes connections immediately; .* or requires certificate and private_key",
            ):
                await answer_from(address, credentials)


async def test_a_server_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(WorkerUnavailableError, match="Cannot use the server at unix:.*: the socket does not exist"):
        await answer_from(f"unix:{tmp_path}/s")


async def test_messages_may_be_large():
    async with serving() as address:
        assert len(await answer_from(address, request=bytes(20_000_000))) == 20_000_000


async def test_options_of_the_caller_count_before_those_here():
    async with serving() as address:
        with pytest.raises(ResourceLimitError):
            await answer_from(address, options=(("grpc.max_receive_message_length", 2),))


async def test_a_status_of_the_largest_size_reaches_even_a_client_with_the_limits_of_grpc():
    request = b"fail".ljust(MAX_DETAILS_BYTES, b"\xff")
    async with serving() as address, grpc.aio.insecure_channel(address) as channel:
        for _ in range(20):  # above the limit, gRPC fails calls at random
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, request)
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND
            assert dict(caught.value.trailing_metadata())["grpc-status-details-bin"] == request


def test_clients_do_not_ping_more_often_than_servers_permit():
    client, server = dict(CLIENT_OPTIONS), dict(SERVER_OPTIONS)
    assert client["grpc.keepalive_time_ms"] >= server["grpc.http2.min_ping_interval_without_data_ms"]
    assert server["grpc.keepalive_permit_without_calls"] == client["grpc.keepalive_permit_without_calls"]
    assert "grpc.http2.max_pings_without_data" not in client
    assert channels.KEEPALIVE_SECONDS > channels.KEEPALIVE_TIMEOUT_SECONDS


def test_clients_close_idle_connections_before_servers_do():
    grpcs_own = 30 * 60
    assert 2 * max(channels.CLIENT_IDLE_SECONDS, grpcs_own) <= ServerLimits().idle_seconds
