"""What a server says of itself and of errors reaches no terminal as a command for it."""

import numpy as np
import pytest
from federated_language import FunctionType, StructType, TensorType

from fedstack.command_line import status_command
from fedstack.command_line.command import say
from fedstack.errors import InvalidValueError, LeafError
from fedstack.proto.extensions_pb2 import GetStatusResponse, Work
from fedstack.proto.methods_pb2 import ListMethodsResponse, MethodDescription
from fedstack.service.rpc.signatures import read_signature
from fedstack.transport.wire.status import code_of, details_of, error_from_status

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b"


def _description() -> MethodDescription:
    struct = StructType([("x" + EVIL, TensorType(np.int32)), ("y", TensorType(np.int32))])
    function = FunctionType(struct, StructType([("z" + EVIL, TensorType(np.int32))]))
    return MethodDescription(name="add" + EVIL, type=function.to_proto(), parameter=["a" + EVIL, "b"], doc="doc" + EVIL)


def _is_clean(text: str) -> bool:
    return "\x1b" not in text and "\x9b" not in text and "owned" in text


def test_a_method_is_shown_without_them() -> None:
    signature = read_signature(_description())
    assert _is_clean(str(signature))
    assert _is_clean(signature.doc)
    with pytest.raises(TypeError) as raised:
        signature.payload([1], {EVIL: 2})
    assert _is_clean(str(raised.value))


@pytest.mark.parametrize("error", [InvalidValueError(EVIL), LeafError(EVIL, computation_name=EVIL), KeyError(EVIL)])
def test_so_is_an_error_and_its_traceback(error: Exception) -> None:
    found = error_from_status(code_of(error), EVIL, details_of(error), "somewhere")
    assert _is_clean(str(found))
    assert found.__cause__ is None or _is_clean(f"{found.__cause__} owned")
    assert _is_clean(f"{getattr(found, 'computation_name', '')} owned")
    assert _is_clean(str(error_from_status(3, EVIL, None, "somewhere")))


def test_and_so_is_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    status = GetStatusResponse(
        version=EVIL,
        session=[GetStatusResponse.Session(id=EVIL)],
        work=[Work(function=EVIL, session=EVIL)],
        calls=[GetStatusResponse.Calls(method=EVIL, code=EVIL, count=1)],
    )
    for line in (
        *status_command.status_lines("somewhere", status),
        *status_command.method_lines(ListMethodsResponse(method=[_description()])),
    ):
        say(line)
    assert _is_clean(capsys.readouterr().out)
