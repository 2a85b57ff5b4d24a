"""Exports of JAX functions that come from elsewhere: altered, too new, of other types, or calling strange code."""

import hashlib

import attrs
import federated_language as fl
import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from federated_language.proto import computation_pb2

import fedstack
from fedstack.computations.leaves import portability
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.function_pickles import dumps, loads
from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves, allowed_carriers, load_leaf
from fedstack.computations.leaves.portability import check_received, warn_of_differing
from fedstack.computations.leaves.work_scope import WorkScope
from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.leaves.xla.exported_program import ExportedProgram, read_export
from fedstack.errors import CarrierError
from fedstack.proto.carriers_pb2 import JaxExport

FLOAT = np.float32
CARRIER = "fedstack.v1.JaxExport"


@fedstack.jax_computation(FLOAT)
def half(x):
    return x / 2


def altered(**fields) -> computation_pb2.Computation:
    """Returns the computation with other fields in its carrier; the digests are those of the content."""
    message = computation_pb2.Computation()
    message.CopyFrom(half.to_proto())
    export = JaxExport.FromString(message.xla.hlo_module.value)
    for name, value in fields.items():
        setattr(export, name, value)
    message.xla.hlo_module.Pack(export)
    return message


def digested(content: bytes) -> dict[str, object]:
    return {"exported": content, "digest": hashlib.sha256(content).digest()}


def error_of(message: computation_pb2.Computation) -> str:
    with pytest.raises(CarrierError) as caught:
        load_leaf(message)
    return str(caught.value)


def exported(function, *shapes, **options) -> bytes:
    arguments = [jax.ShapeDtypeStruct(shape, FLOAT) for shape in shapes]
    return bytes(jax.export.export(jax.jit(function), **options)(*arguments).serialize())


def test_an_export_is_an_xla_block_with_its_tensors() -> None:
    message = fedstack.jax_computation({"a": FLOAT, "b": [FLOAT, (np.int32, [2])]})(lambda x: [x.b[1], x.a]).to_proto()
    assert message.WhichOneof("computation") == "xla"
    assert message.xla.hlo_module.type_url.endswith(CARRIER)
    parameter = message.xla.parameter.struct.element
    assert [one.tensor.index for one in (parameter[0], *parameter[1].struct.element)] == [0, 1, 2]
    assert [one.tensor.index for one in message.xla.result.struct.element] == [0, 1]
    export = JaxExport.FromString(message.xla.hlo_module.value)
    assert (export.name, export.version) == ("<lambda>", jax.__version__)


def test_altered_bytes_are_found_before_they_are_parsed(monkeypatch) -> None:
    monkeypatch.setattr(jax.export, "deserialize", lambda _: pytest.fail("they were parsed"))
    export = JaxExport.FromString(half.to_proto().xla.hlo_module.value)
    for name in ("exported", "group"):
        content = bytearray(getattr(export, name))
        content[len(content) // 2] ^= 1
        message = altered(**{name: bytes(content)})
        if name == "exported":
            assert "Expected 'half' as it was exported, found bytes with another digest" in error_of(message)
    assert "another digest" in error_of(altered(exported=export.exported[:-1]))


def test_the_group_is_checked_too() -> None:
    export = JaxExport.FromString(half.to_proto().xla.hlo_module.value)
    assert "another digest" in error_of(altered(group=export.group + b"x"))
    assert "Expected a power of two of clients in a group of 'half', found 3" in error_of(altered(lanes=3))
    assert "a power of two" in error_of(altered(lanes=1 << 31))
    assert "to take float32[512], found float32[4096]" in error_of(altered(lanes=512))
    assert load_leaf(altered(lanes=0)).lanes == 1


def test_bytes_that_are_no_export_are_refused() -> None:
    assert "found bytes that JAX" in error_of(altered(**digested(b"not an export")))
    assert "found bytes that JAX" in error_of(altered(**digested(b"")))
    message = altered()
    message.xla.hlo_module.value = b"\xff"
    assert "is not a valid fedstack.v1.JaxExport" in error_of(message)


def test_an_export_of_a_newer_version_names_both() -> None:
    found = error_of(altered(version="99.1.2"))
    assert f"Expected an export of JAX {jax.__version__} or an older version" in found
    assert "'half' as an export of JAX 99.1.2; install the same version of JAX in both processes" in found
    assert load_leaf(altered(version="0.5.0")).name == "half"


def test_another_kind_of_machine_is_reported_or_refused(caplog, monkeypatch) -> None:
    monkeypatch.setattr(portability, "_warned_of", set())  # Another test of this process may have had the warning.
    assert load_leaf(half.to_proto()).differing_module == ""
    other = altered(fingerprint=b"of another machine")
    assert load_leaf(other).differing_module == "jaxlib"
    warn_of_differing(["jaxlib"], "somewhere:1")
    warn_of_differing(["jaxlib"], "somewhere:2")
    (record,) = caplog.records
    assert (
        "The worker at somewhere:1 has another version of jaxlib, other flags of XLA, another device" in record.message
    )
    loaded = LoadedLeaves(CarrierPolicy(strict_modules=True))
    with WorkScope(policy=CarrierPolicy(strict_modules=True)).entered():
        loaded.load(half.to_proto())
        with pytest.raises(CarrierError, match="start the worker without --strict-modules"):
            loaded.load(other)


def test_an_export_of_other_types_is_refused() -> None:
    assert "to take float32, found float32[3]; export it again" in error_of(
        altered(**digested(exported(lambda x: x.sum(), (3,))))
    )
    assert "to return float32, found float32[3]" in error_of(
        altered(**digested(exported(lambda x: jnp.stack([x] * 3), ())))
    )
    assert "to take float32, found float32[], float32[]" in error_of(
        altered(**digested(exported(lambda x, y: x + y, (), ())))
    )


def test_an_export_for_another_platform_is_refused() -> None:
    found = error_of(altered(**digested(exported(lambda x: x, (), platforms=["tpu"]))))
    assert "to be exported for the platform 'cpu' of this process, found an export for tpu" in found


def test_calls_of_strange_code_are_refused() -> None:
    def called(x):
        return jax.ffi.ffi_call("somebody_elses_code", jax.ShapeDtypeStruct((), FLOAT))(x)

    checks = [jax.export.DisabledSafetyCheck.custom_call("somebody_elses_code")]
    content = exported(called, (), disabled_checks=checks)
    found = error_of(altered(**digested(content)))
    assert "Expected 'half' to call functions of XLA only, found 'somebody_elses_code'" in found


def test_functions_of_lapack_are_allowed() -> None:
    factor = fedstack.jax_computation((FLOAT, [2, 2]))(lambda x: jnp.linalg.cholesky(x))
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert factor(np.diag([4.0, 9.0]).astype(FLOAT)).tolist() == [[2.0, 0.0], [0.0, 3.0]]


def test_a_policy_may_refuse_exports() -> None:
    assert CARRIER in allowed_carriers(CarrierPolicy())
    assert CARRIER not in allowed_carriers(CarrierPolicy(jax_exports=False))
    check_received(half.to_proto(), CarrierPolicy())
    with pytest.raises(CarrierError, match="start the worker with --token-file or --tls-client-ca"):
        check_received(half.to_proto(), CarrierPolicy(jax_exports=False))


def test_without_jax_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(jax_api, "is_installed", lambda: False)
    assert CARRIER not in allowed_carriers(CarrierPolicy())
    with pytest.raises(CarrierError, match=r'JAX is not installed here, .*: pip install "fedstack\[jax\]"'):
        check_received(half.to_proto(), CarrierPolicy())


def test_leaves_are_loaded_once_for_equal_contents() -> None:
    loaded = LoadedLeaves()
    assert loaded.load(half.to_proto()) is loaded.load(altered())


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_functions_take_no_more_memory_than_a_hundred() -> None:
    def used_after(functions: int) -> int:
        for number in range(functions):
            shifted = fedstack.jax_computation((FLOAT, [20]))((lambda n: lambda x: jnp.tanh(x) + n)(number))
            assert leaves.load(shifted.to_proto()).call((np.zeros(20, FLOAT)), 0)[0] == number
        return psutil.Process().memory_info().rss

    leaves = LoadedLeaves()
    before = used_after(300)
    assert used_after(700) < before + (300 << 20)


def test_a_function_that_captured_an_array_has_it_in_its_export() -> None:
    matrix = np.arange(6, dtype=FLOAT).reshape(2, 3)
    product = fedstack.jax_computation((FLOAT, [2]))(lambda x: x @ matrix)
    matrix[:] = 0
    with fedstack.use_context(fedstack.create_sync_local_execution_context()):
        assert product(np.ones(2, FLOAT)).tolist() == [3.0, 5.0, 7.0]


def test_a_computation_with_a_jax_function_can_be_sent_with_python_code() -> None:
    @fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
    def halves(x):
        return fl.federated_map(half, x)

    for computation in (half, halves):
        found = loads(dumps(computation))
        assert found.type_signature == computation.type_signature
        assert found.to_proto() == computation.to_proto()


@pytest.mark.parametrize("operation", ["infeed", "outfeed", "send", "recv"])
def test_operations_that_wait_for_other_processes_are_refused(operation: str) -> None:
    export = read_export(JaxExport.FromString(half.to_proto().xla.hlo_module.value).exported, "half")
    assert ExportedProgram(export, "half")([FLOAT(3)]) == [FLOAT(1.5)]
    waiting = attrs.evolve(export, code=export.code + f'\n%1 = "stablehlo.{operation}"(%0)')
    with pytest.raises(CarrierError, match=f"functions of XLA only, found 'stablehlo.{operation}'; remove"):
        ExportedProgram(waiting, "half")
