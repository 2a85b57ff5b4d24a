"""The generated messages: made by the right generator, loadable, and what the .proto text says."""

import importlib
from pathlib import Path

import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message

from fedstack.proto.carriers_pb2 import JaxExport, PickledPython, PythonHandle, PythonReference

FOLDER = Path(__file__).resolve().parents[2] / "fedstack" / "proto"
PROTOS = sorted(path.stem for path in FOLDER.glob("*.proto"))

CARRIERS = [
    PythonHandle(process="a1b2", serial=2**64 - 1, name="scale.<locals>.apply"),
    PythonReference(module="package.module", qualname="Class.method", digest=b"\x00\xff"),
    PickledPython(function=b"\x80\x05.", python_version="3.11", name="apply"),
    JaxExport(exported=b"\x00\x01", digest=b"\xfe"),
]


@pytest.mark.parametrize("proto", PROTOS)
def test_every_proto_has_generated_code_that_loads(proto: str) -> None:
    module = importlib.import_module(f"fedstack.proto.{proto}_pb2")
    assert module.DESCRIPTOR.name == f"fedstack/proto/{proto}.proto"
    assert module.DESCRIPTOR.package == "fedstack.v1"


@pytest.mark.parametrize("proto", PROTOS)
def test_generated_code_is_old_enough_for_every_protobuf_that_the_language_allows(proto: str) -> None:
    assert "# Protobuf Python Version: 5.29.0\n" in (FOLDER / f"{proto}_pb2.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: type(carrier).__name__)
def test_a_carrier_comes_back_from_its_bytes(carrier: Message) -> None:
    assert type(carrier).FromString(carrier.SerializeToString()) == carrier


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: type(carrier).__name__)
def test_a_packed_carrier_is_known_by_its_type_url(carrier: Message) -> None:
    packed = Any()
    packed.Pack(carrier)
    assert packed.type_url == f"type.googleapis.com/fedstack.v1.{type(carrier).__name__}"
    unpacked = type(carrier)()
    assert packed.Unpack(unpacked)
    assert unpacked == carrier
