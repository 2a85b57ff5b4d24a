"""One configuration of hosts, and what those of servers have to do with it."""

from pathlib import Path

import attrs
import pytest

from fedstack.errors import InvalidValueError
from fedstack.service import ServerConfig, ServerCredentials, ServerLimits
from fedstack.service.data import DispatcherConfig, WorkerConfig
from fedstack.service.host.config import HostConfig
from fedstack.service.host.listening import LOCAL
from fedstack.transport.wire.addresses import parse_target


@pytest.mark.parametrize(
    "config",
    [
        ServerConfig(ServerCredentials(tokens=["a"]), insecure=True, server_limits=ServerLimits(max_calls=3)),
        DispatcherConfig(7, credentials=ServerCredentials(tokens=["a"]), server_limits=ServerLimits(max_calls=3)),
        WorkerConfig("localhost:1", port=7, token_file="tokens", host="::1"),
    ],
    ids=lambda config: type(config).__name__,
)
def test_what_a_configuration_of_a_server_says_of_its_host_holds(config: attrs.AttrsInstance) -> None:
    found, default = HostConfig.of(config), HostConfig()
    for field in attrs.fields(HostConfig):
        assert getattr(found, field.name) == getattr(config, field.name, getattr(default, field.name))


def test_an_address_takes_the_place_of_host_port_and_socket() -> None:
    config = ServerConfig(host="worker.example", insecure=True)
    assert HostConfig.of(config, parse_target("[::1]:7")) == HostConfig(host="::1", port=7, insecure=True)
    at_socket = HostConfig.of(config, parse_target("unix:/run/s"))
    assert (at_socket.unix_socket, at_socket.listens.address) == (Path("/run/s"), "unix:/run/s")


def test_where_a_host_listens_is_an_address() -> None:
    assert HostConfig().listens.address == "127.0.0.1:0"
    assert HostConfig(host="[::1]", port=7) == HostConfig(host="::1", port=7)
    assert HostConfig(host="::1", port=7).listens.address == "[::1]:7"
    assert HostConfig(host="0.0.0.0").listens.is_everywhere
    with pytest.raises(InvalidValueError, match="an address of this machine, found ' '"):
        _ = HostConfig(host=" ").listens


def test_within_one_process_there_are_no_credentials(tmp_path: Path) -> None:
    config = HostConfig(protocol=LOCAL, credentials=ServerCredentials(tokens=["a"]), token_file=tmp_path / "none")
    assert config.all_credentials() == ServerCredentials()


def test_a_protocol_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="Expected the protocol .*, found 'http'"):
        HostConfig(protocol="http")
