"""Whom to dial: what users write is read or refused with a reason."""

from pathlib import Path

import pytest

from fedstack.errors import InvalidValueError
from fedstack.transport.wire.addresses import Target, TargetResolver, is_loopback, parse_target, resolve_targets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("worker-1:8000", Target("worker-1:8000", None)),
        (" 10.0.0.7:8000\n", Target("10.0.0.7:8000", None)),
        ("[::1]:8000", Target("[::1]:8000", None)),
        ("grpc://worker_1.example:1", Target("worker_1.example:1", False)),
        ("GRPC://worker:65535/", Target("worker:65535", False)),
        ("grpcs://[fe80::1]:443", Target("[fe80::1]:443", True)),
        ("unix:/run/worker.sock", Target("unix:/run/worker.sock", None)),
        ("unix:///run/my worker.sock", Target("unix:/run/my worker.sock", None)),
    ],
)
def test_an_address_is_read_as_grpc_takes_it(text, expected):
    assert parse_target(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected the address of a server, found ''; write host:port"),
        ("grpc://", "Expected the address of a server, found 'grpc://'"),
        ("worker", "Expected an address with a port, found 'worker'; write, for example, worker:8000"),
        ("8000", "Expected an address with a port, found '8000'; write, for example, localhost:8000"),
        ("grpcs://[::1]", "Expected an address with a port, found 'grpcs://[::1]'; write, for example, [::1]:8000"),
        ("worker:0", "Expected a port from 1 to 65535, found 0 in 'worker:0'"),
        ("worker:65536", "Expected a port from 1 to 65535, found 65536"),
        ("worker:http", "Expected a number as the port of worker, found 'http' in 'worker:http'"),
        (":8000", "Expected host:port"),
        ("::1:8000", "enclose an IPv6 address in brackets, as in [::1]:8000"),
        ("[worker]:8000", "Expected an IPv6 address in brackets, found '[worker]:8000'"),
        ("http://worker:8000", "replace the scheme with grpc://"),
        ("https://worker:8000", "replace the scheme with grpcs://"),
        ("ftp://worker:8000", "Expected host:port, grpc://host:port, grpcs://host:port or unix:/path, found 'ftp://"),
        ("grpc://worker:8000/path", "Expected a number as the port of worker, found '8000/path'"),
        ("worker:1:2", "Expected host:port"),
        ("grpc://me@worker:8000", "Expected host:port"),
        ("worker:8000,other:8000", "pass several addresses as a list"),
        ("unix:worker.sock", "Expected the absolute path of a socket, found 'unix:worker.sock'; write unix:/path"),
        ("unix:", "Expected the absolute path of a socket"),
        ("unix:///", "Expected the absolute path of a socket"),
    ],
)
def test_what_is_no_address_is_refused_with_a_reason(text, message):
    with pytest.raises(InvalidValueError) as caught:
        parse_target(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("wrong", [Path("/run/worker.sock"), 8000, [8000]], ids=str)
def test_what_is_no_text_is_no_address(wrong):
    with pytest.raises(InvalidValueError, match="Expected addresses as text, found .*; write host:port"):
        resolve_targets(wrong)


def test_one_address_or_several_are_targets():
    expected = (Target("a:1", None), Target("b:2", True))
    assert resolve_targets("a:1") == expected[:1]
    assert resolve_targets(expected[1]) == expected[1:]
    assert resolve_targets(["a:1", Target("b:2", True)]) == expected


def test_a_resolver_is_asked_each_time():
    class Growing:
        def __init__(self):
            self.ports = []

        def resolve(self):
            self.ports.append(8000 + len(self.ports))
            return [Target(f"worker:{port}") for port in self.ports]

    resolver = Growing()
    assert isinstance(resolver, TargetResolver)
    assert [len(resolve_targets(resolver)) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("targets", [[], ()])
def test_no_targets_are_refused(targets):
    with pytest.raises(InvalidValueError, match="Expected at least one address of a server, found none"):
        resolve_targets(targets)


def test_a_target_that_is_no_text_is_refused():
    with pytest.raises(InvalidValueError, match="Expected addresses as text, found 8000"):
        resolve_targets([8000])


@pytest.mark.parametrize("address", ["localhost:1", "LOCALHOST:1", "127.0.0.1:1", "127.8.9.1:1", "[::1]:1"])
def test_addresses_of_this_machine_alone_are_loopback(address):
    assert is_loopback(address)
    assert Target(address).is_local


@pytest.mark.parametrize(
    "address", ["", "10.0.0.1:1", "0.0.0.0:1", "[::]:1", "localhost.example:1", "127.0.0.1.example:1", "[fe80::1]:1"]
)
def test_all_others_are_not(address):
    assert not is_loopback(address)
    assert not Target(address).is_local


def test_a_socket_is_local_and_not_loopback():
    assert Target("unix:/run/worker.sock").is_local
    assert not is_loopback("unix:/run/worker.sock")
