"""Certificates, keys and tokens: read with care, never shown."""

import re

import pytest
from certificate_files import write_certificates

from fedstack.errors import InvalidValueError
from fedstack.transport.grpc.credential_files import bearer_token, read_tokens, token_matches
from fedstack.transport.grpc.credentials import ClientCredentials, ServerCredentials, server_credentials

CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = b"-----BEGIN EC PRIVATE KEY-----\nBBBB\n-----END EC PRIVATE KEY-----\n"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_certificates(tmp_path_factory.mktemp("pairs"))


@pytest.fixture
def files(tmp_path, pairs):
    (tmp_path / "certificate.pem").write_bytes(pairs.client_cert.read_bytes())
    (tmp_path / "key.pem").write_bytes(pairs.client_key.read_bytes())
    (tmp_path / "tokens").write_text("# of this week\nnew-secret\n\n  old-secret  \n", encoding="utf-8")
    return tmp_path


def test_client_credentials_are_read_from_files(files):
    certificate, key = (files / "certificate.pem").read_bytes(), (files / "key.pem").read_bytes()
    assert ClientCredentials.from_files(
        root_certificates=files / "certificate.pem",
        certificate=str(files / "certificate.pem"),
        private_key=files / "key.pem",
        token_file=files / "tokens",
        server_name="worker",
    ) == ClientCredentials(
        root_certificates=certificate,
        certificate=certificate,
        private_key=key,
        token="new-secret",
        server_name="worker",
    )


def test_a_token_may_be_given_beside_files_and_not_beside_a_file_of_tokens(files):
    credentials = ClientCredentials.from_files(root_certificates=files / "certificate.pem", token="secret")
    assert credentials.metadata == (("authorization", "Bearer secret"),)
    assert credentials.uses_tls
    with pytest.raises(InvalidValueError, match="Expected either token or token_file, found both"):
        ClientCredentials.from_files(token="secret", token_file=files / "tokens")


def test_server_credentials_are_read_from_files(files):
    certificate, key = (files / "certificate.pem").read_bytes(), (files / "key.pem").read_bytes()
    assert ServerCredentials.from_files(
        certificate=files / "certificate.pem",
        private_key=files / "key.pem",
        client_root_certificates=files / "certificate.pem",
        token_file=files / "tokens",
    ) == ServerCredentials(
        certificate=certificate,
        private_key=key,
        client_root_certificates=certificate,
        tokens=("new-secret", "old-secret"),
    )


@pytest.mark.parametrize("kind", [ClientCredentials, ServerCredentials])
def test_a_key_of_another_certificate_is_found_when_the_files_are_read_and_both_are_named(kind, pairs):
    with pytest.raises(InvalidValueError, match="found the key of another certificate: ") as found:
        kind.from_files(certificate=pairs.client_cert, private_key=pairs.server_key)
    assert f"{pairs.client_cert} and {pairs.server_key}; pass a matching pair" in str(found.value)


def test_no_files_are_no_credentials():
    assert ClientCredentials.from_files() == ClientCredentials()
    assert ServerCredentials.from_files() == ServerCredentials()
    assert not ClientCredentials().uses_tls
    assert not ServerCredentials().uses_tls


def test_a_token_alone_does_not_ask_for_tls():
    assert not ClientCredentials(token="secret").uses_tls
    assert ClientCredentials(server_name="worker").uses_tls
    assert ClientCredentials(root_certificates=CERTIFICATE).uses_tls
    assert ServerCredentials(certificate=CERTIFICATE, private_key=KEY).uses_tls


def test_secrets_are_not_shown():
    client = ClientCredentials(certificate=CERTIFICATE, private_key=KEY, token="secret", server_name="worker")
    server = ServerCredentials(certificate=CERTIFICATE, private_key=KEY, tokens=["secret", "secret2"])
    assert repr(client) == "<ClientCredentials: certificate and key, token, server name worker>"
    assert repr(server) == "<ServerCredentials: certificate and key, 2 tokens>"
    assert repr(ClientCredentials()) == "<ClientCredentials: none>"


@pytest.mark.parametrize("name", ["root_certificates", "certificate", "private_key", "token_file"])
def test_a_file_that_is_not_there_is_named(name, tmp_path):
    message = f"Cannot read the file {tmp_path / 'gone.pem'}: "
    with pytest.raises(InvalidValueError, match=re.escape(message)):
        ClientCredentials.from_files(**{name: tmp_path / "gone.pem"})


def test_a_certificate_and_a_key_that_were_swapped_are_noticed(files):
    with pytest.raises(InvalidValueError, match=r"Expected .*key.pem in PEM, with a line -----BEGIN ... CERTIFICATE"):
        ServerCredentials.from_files(certificate=files / "key.pem", private_key=files / "certificate.pem")


def test_a_certificate_without_its_key_is_refused():
    with pytest.raises(InvalidValueError, match="found only a certificate; pass its private key too"):
        ClientCredentials(certificate=CERTIFICATE)
    with pytest.raises(InvalidValueError, match="found only a private key; pass its certificate too"):
        ServerCredentials(private_key=KEY)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("token", 5, "Expected a token as text, found int"),
        ("token", b"secret", "Expected a token as text, found bytes"),
        (
            "root_certificates",
            CERTIFICATE.decode(),
            "Expected root certificates in PEM as bytes, found str; use from_files",
        ),
        ("certificate", 5, "Expected a certificate in PEM as bytes, found int"),
        ("private_key", KEY.decode(), "Expected a private key in PEM as bytes, found str"),
        ("server_name", b"worker", "Expected server_name to be a host name as text, found"),
        ("server_name", "", "Expected server_name to be a host name as text, found"),
    ],
)
def test_parts_of_another_type_are_refused_and_not_quoted(part, value, message):
    parts = {"certificate": CERTIFICATE, "private_key": KEY, part: value}
    with pytest.raises(InvalidValueError, match=message) as caught:
        ClientCredentials(**parts)
    assert "secret" not in str(caught.value)
    assert "BBBB" not in str(caught.value)


@pytest.mark.parametrize("tokens", ["secret", b"secret", 5, None, [5]])
def test_tokens_of_a_server_are_a_list_of_texts(tokens):
    with pytest.raises(InvalidValueError, match="Expected a (list of tokens|token as text), found") as caught:
        ServerCredentials(tokens=tokens)
    assert "secret" not in str(caught.value)


def test_an_encrypted_key_is_refused():
    with pytest.raises(InvalidValueError, match="found an encrypted one"):
        ClientCredentials(certificate=CERTIFICATE, private_key=KEY.replace(b"EC PRIVATE", b"ENCRYPTED PRIVATE"))


def test_clients_cannot_be_asked_for_certificates_in_plaintext():
    with pytest.raises(InvalidValueError, match="clients can present certificates only over TLS"):
        ServerCredentials(client_root_certificates=CERTIFICATE)


def test_tls_needs_a_certificate():
    with pytest.raises(InvalidValueError, match="Expected a certificate and a private key for TLS, found neither"):
        server_credentials(ServerCredentials(tokens=("secret",)))


def test_a_token_file_has_a_token_on_each_line(files):
    assert read_tokens(files / "tokens") == ("new-secret", "old-secret")


def test_a_token_file_may_be_of_windows(tmp_path):
    (tmp_path / "tokens").write_bytes(b"\xef\xbb\xbfsecret\r\n")
    assert read_tokens(tmp_path / "tokens") == ("secret",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expected at least one token in {}, found none; add a line with a token"),
        (b"# none yet\n\n", "Expected at least one token in {}, found none; add a line with a token"),
        (b"sec ret\n", "Expected a token of printable ASCII characters without spaces, found other characters in {}"),
        (
            b"s\xc3\xa9cret\n",
            "Expected a token of printable ASCII characters without spaces, found other characters in {}",
        ),
        (b"\xff\xfe", "Expected tokens in UTF-8, found another encoding in {}; save the file as UTF-8"),
    ],
)
def test_a_file_without_good_tokens_is_named_and_not_quoted(content, message, tmp_path):
    (tmp_path / "tokens").write_bytes(content)
    with pytest.raises(InvalidValueError) as caught:
        read_tokens(tmp_path / "tokens")
    assert str(caught.value) == message.format(tmp_path / "tokens")


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "é"])
def test_a_token_that_cannot_travel_is_refused_and_not_quoted(token):
    with pytest.raises(InvalidValueError, match="Expected a token of printable ASCII characters") as caught:
        ClientCredentials(token=token)
    assert not token or token not in str(caught.value)
    with pytest.raises(InvalidValueError):
        ServerCredentials(tokens=(token,))


def test_a_token_goes_with_each_call_and_is_found_there():
    metadata = ClientCredentials(token="secret").metadata
    assert metadata == (("authorization", "Bearer secret"),)
    assert bearer_token([("user-agent", "x"), *metadata]) == "secret"
    assert bearer_token([("authorization", "bearer  secret ")]) == "secret"
    assert ClientCredentials().metadata == ()


@pytest.mark.parametrize(
    "metadata", [[], [("authorization", "Basic secret")], [("authorization", b"Bearer secret")], [("token", "secret")]]
)
def test_where_there_is_no_token_none_is_found(metadata):
    assert bearer_token(metadata) == ""


def test_a_token_must_be_one_of_those_allowed():
    assert token_matches("b", ("a", "b", "c"))
    assert not token_matches("d", ("a", "b", "c"))
    assert not token_matches("", ("a",))
    assert not token_matches("é\ud800", ("a",))
    assert not token_matches("a", ())
