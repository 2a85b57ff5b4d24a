"""docs/wire.md says what really goes over the wire, and the raw client that it tells of works."""

import re
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pool, text_format
from google.protobuf.message_factory import GetMessageClass
from wire_exchange import RAW_CLIENT, READINGS
from wire_page import PAGE, names_in, parts

import fedstack
from fedstack.proto import executor_pb2, extensions_pb2
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServerLimits
from fedstack.service.host.server_thread import ServerThread
from fedstack.transport.grpc import channels
from fedstack.transport.wire import frames

TEXT = PAGE.read_text(encoding="utf-8")
ADVICE = "run: python tests/service/wire_page.py"
WALL = 60
pytestmark = pytest.mark.slow  # about the page, whatever Python reads it


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    return dict(parts())


def test_the_page_has_every_part_once(now: dict[str, str]) -> None:
    assert sorted(names_in(TEXT)) == sorted(now), ADVICE


def test_the_parts_are_up_to_date(now: dict[str, str]) -> None:
    stale = {
        name: [line for line in text.splitlines() if line not in TEXT]
        for name, text in now.items()
        if f"<!-- {name}, written by" not in TEXT or text not in TEXT
    }
    assert stale == {}, ADVICE


@pytest.mark.parametrize("package", [executor_pb2, extensions_pb2])
def test_the_page_names_every_method_and_the_methods_that_it_names_are_there(package) -> None:
    names = {name.removesuffix("Request") for name in dir(package) if name.endswith("Request")}
    service = ExecutorService(fedstack.local_executor_factory())
    served = {method for methods in service.methods.values() for method in methods}
    assert [method for method in sorted(served) if f"`{method}`" not in TEXT] == []
    # Two are named after what they ask for, and two are the server's own, whatever it serves.
    assert names - served <= {"Download", "Phase", "Join", "GetStatus"}


def test_messages_in_the_page_can_be_read_back() -> None:
    checked = 0
    for name, content in re.findall(
        r"^# (\w+(?:Request|Response)|Download)\b[^\n]*\n((?:[^#`\n][^\n]*\n)+)", TEXT, re.MULTILINE
    ):
        found = descriptor_pool.Default().FindMessageTypeByName(f"fedstack.v1.{name}")
        text_format.Parse(content, GetMessageClass(found)())
        checked += 1
    assert checked >= 18


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    text = " ".join(TEXT.split())
    for number in (
        f"every {channels.KEEPALIVE_SECONDS} s, and waits {channels.KEEPALIVE_TIMEOUT_SECONDS} s for the answer",
        f"every {channels.MIN_PING_INTERVAL_SECONDS} s at least",
        f"after {channels.CLIENT_IDLE_SECONDS} s | after {ServerLimits().idle_seconds:.0f} s",
        f"at most {channels.MAX_METADATA_BYTES >> 10} KiB",
        f"Arrays of {frames.Chunking().large_bytes >> 10} KiB and more",
        f"ours have {frames.Chunking().chunk_bytes >> 20} MiB",
    ):
        assert number in text


def test_the_raw_client_gets_its_mean_from_a_server() -> None:
    service = ExecutorService(fedstack.local_executor_factory())
    with ServerThread(GrpcServer([service])) as server:
        done = subprocess.run([sys.executable, RAW_CLIENT, server.target], capture_output=True, text=True, timeout=WALL)
    assert done.stdout == f"{sum(READINGS) / len(READINGS)}\n", done.stderr


def test_the_raw_client_is_short_and_uses_messages_only() -> None:
    source = RAW_CLIENT.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 70
    imports = re.findall(r"^(?:import|from) .+", source, re.MULTILINE)
    assert [line for line in imports if "fedstack" in line] == ["from fedstack.proto import executor_pb2"]
