"""HLO modules in `xla` blocks, as federated_language_jax makes them: what is loaded, refused and written."""

import federated_language as fl
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from federated_language.proto import computation_pb2

import fedstack
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.leaves.leaf_runtimes import Destination, allowed_carriers, load_leaf
from fedstack.computations.leaves.portability import check_received, portable
from fedstack.computations.leaves.vectorized_leaf import VectorizedLeaf
from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.leaves.xla.looped_leaf import LoopedLeaf
from fedstack.computations.types.language import FunctionType, StructType, TensorType, Type
from fedstack.computations.values.columns import ConstantColumn, ScalarColumn
from fedstack.errors import CarrierError

FLOAT, INT = np.float32, np.int32
HLO = "xla.HloModuleProto"
PLAIN = Destination(takes_code=False, is_plain=True)
Binding = computation_pb2.Xla.Binding


def module_of(function, *arguments, **named) -> bytes:
    """Returns what another project puts into a block: all parameters are kept, and JAX sorts those with names."""
    lowered = jax.jit(function, keep_unused=True).lower(*arguments, **named)
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def array(*sizes: int, dtype=FLOAT):
    return jax.ShapeDtypeStruct(sizes, dtype)


def bound(indices) -> Binding:
    """Returns a binding: an index, a list of bindings, or `None` for one that says nothing."""
    if isinstance(indices, list):
        return Binding(struct=computation_pb2.Xla.StructBinding(element=[bound(one) for one in indices]))
    return Binding() if indices is None else Binding(tensor=computation_pb2.Xla.TensorBinding(index=indices))


def in_order(type_spec: Type, first: int = 0):
    """Returns the indices of the tensors of a type in order, and how many there are."""
    if isinstance(type_spec, TensorType):
        return first, first + 1
    found = []
    for _, member in type_spec.items():
        indices, first = in_order(member, first)
        found.append(indices)
    return found, first


def block(content: bytes, parameter, result, given="in order", returned="in order") -> computation_pb2.Computation:
    parameter, result = (None if one is None else fl.to_type(one) for one in (parameter, result))
    message = computation_pb2.Computation(type=FunctionType(parameter, result).to_proto())
    message.xla.hlo_module.type_url = f"type.googleapis.com/{HLO}"
    message.xla.hlo_module.value = content
    if parameter is not None or given != "in order":
        message.xla.parameter.CopyFrom(bound(in_order(parameter)[0] if given == "in order" else given))
    message.xla.result.CopyFrom(bound(in_order(result)[0] if returned == "in order" else returned))
    return message


def half_block(**fields) -> computation_pb2.Computation:
    return block(module_of(lambda x: x / 2, array()), FLOAT, FLOAT, **fields)


def computation(message: computation_pb2.Computation):
    stack = fl.framework.get_context_stack()
    signature = FunctionType.from_proto(message.type)
    return fl.framework.ConcreteComputation(computation_proto=message, context_stack=stack, annotated_type=signature)


def error_of(message: computation_pb2.Computation) -> str:
    with pytest.raises(CarrierError) as caught:
        load_leaf(message)
    return str(caught.value)


@pytest.fixture
def local():
    with fedstack.create_sync_local_execution_context() as context, fedstack.use_context(context):
        yield


def test_a_module_is_called_on_the_server(local) -> None:
    assert computation(half_block())(FLOAT(3)) == 1.5
    nothing = computation(block(module_of(lambda: jnp.arange(3)), None, (INT, [3])))
    assert nothing().tolist() == [0, 1, 2]


def test_bindings_say_which_parameter_is_which_tensor(local) -> None:
    # A function of named parameters, which JAX sorts by name.
    content = module_of(lambda y, x: x - jnp.sum(y), y=array(10, dtype=INT), x=array(dtype=INT))
    parameter = StructType([("y", TensorType(INT, [10])), ("x", INT)])
    found = computation(block(content, parameter, INT, given=[1, 0]))
    assert found(np.arange(10, dtype=INT), INT(50)) == 5
    assert "to take int32[10], int32, found int32[], int32[10]" in error_of(block(content, parameter, INT))


def test_bindings_say_which_result_is_which_tensor(local) -> None:
    content = module_of(lambda x: (x + 1, x * 2.5), array(dtype=INT))
    result = StructType([("product", FLOAT), ("sum", INT)])
    assert dict(computation(block(content, INT, result, returned=[1, 0]))(INT(2))) == {"product": 5.0, "sum": 3}


def test_parameters_may_be_unused_and_structs_empty_or_of_one_member(local) -> None:
    assert computation(block(module_of(lambda x, y: y, array(3), array()), [(FLOAT, [3]), FLOAT], FLOAT))(
        np.zeros(3, FLOAT), FLOAT(2)
    ) == FLOAT(2)
    one = StructType([("only", FLOAT)])
    assert dict(computation(block(module_of(lambda x: (-x,), array()), one, one))({"only": FLOAT(2)})) == {"only": -2.0}
    none = StructType([])
    looped = load_leaf(block(module_of(lambda: (jnp.float32(3),)), none, FLOAT))
    assert looped.call_column(ConstantColumn((), 5), 0, 5).items() == [3.0] * 5
    for indices in ([], None):  # of which the C++ executor writes the latter
        message = block(module_of(lambda: (jnp.float32(3),)), none, FLOAT, given=indices)
        assert load_leaf(message).call(()) == 3.0
        assert load_leaf(block(module_of(lambda x: (), array()), FLOAT, none, returned=indices)).call(FLOAT(1)) == ()


def test_nested_structs_are_bound_in_order(local) -> None:
    parameter = StructType([(None, StructType([("a", FLOAT), ("b", FLOAT)])), (None, FLOAT)])
    content = module_of(lambda a, b, c: (c, (a, b)), array(), array(), array())
    result = StructType([("c", FLOAT), ("rest", StructType([(None, FLOAT), (None, FLOAT)]))])
    found = computation(block(content, parameter, result))({"a": FLOAT(1), "b": FLOAT(2)}, FLOAT(3))
    assert (found["c"], list(found["rest"])) == (3.0, [1.0, 2.0])


DTYPES = [np.bool_, np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32, np.complex64]
WIDE = [np.int64, np.uint64, np.float64, np.complex128]


@pytest.mark.parametrize("dtype", [*DTYPES, *WIDE, ml_dtypes.bfloat16])
def test_modules_compute_with_all_numbers_of_the_language(dtype, local) -> None:
    with jax_api.with_wide_types():
        content = module_of(lambda x, y: (x, y[::-1]), array(dtype=dtype), array(2, dtype=dtype))
    message = block(content, [dtype, (dtype, [2])], [dtype, (dtype, [2])])
    scalar, row = load_leaf(message).call((np.ones((), dtype)[()], np.array([0, 1], dtype)))
    assert (scalar.dtype, row.dtype, scalar, row.tolist()) == (dtype, dtype, 1, [1, 0])


MATRIX = np.random.default_rng(0).normal(size=(3, 3)).astype(FLOAT)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(3)),
        lambda a: jnp.linalg.inv(a),
        lambda a: jnp.abs(jnp.fft.fft(a)),
        lambda a: jax.lax.top_k(a, 2)[0],
        lambda a: jax.scipy.special.erf(a) + jnp.tan(a),
        lambda a: jax.random.normal(jax.random.PRNGKey(3), (3, 3)) + a,
        lambda a: jax.lax.scan(lambda c, x: (c + x, c * x), a[0], a)[1],
        lambda a: jax.lax.cond(a[0, 0] > 0, lambda x: x + 1, lambda x: x * 2, a),
        lambda a: jax.lax.while_loop(lambda x: jnp.sum(x) < 100.0, lambda x: jnp.abs(x) * 2, a),
        lambda a: jax.lax.conv(a.reshape(1, 1, 3, 3), a[:2, :2].reshape(1, 1, 2, 2), (1, 1), "SAME"),
        lambda a: jax.grad(lambda x: jnp.sum(jax.nn.softmax(x @ x)))(a),
        lambda a: a[jnp.array([0, 2])].at[1].set(3.0),
    ],
)
def test_operations_have_the_bits_that_jax_computes_itself(function) -> None:
    expected = np.asarray(jax.jit(function)(MATRIX))
    message = block(module_of(function, array(3, 3)), (FLOAT, [3, 3]), (FLOAT, expected.shape))
    assert load_leaf(message).call(MATRIX).tobytes() == expected.tobytes()


def test_over_clients_it_runs_in_a_loop_of_many_clients_if_it_is_cheap() -> None:
    cheap = load_leaf(half_block())
    assert isinstance(cheap, LoopedLeaf)
    assert (cheap.most, cheap.lanes) == (1024, 1)
    large = block(module_of(lambda x: x @ x, array(90, 90)), (FLOAT, [90, 90]), (FLOAT, [90, 90]))
    assert load_leaf(large).most == 16
    loop = module_of(lambda x: jax.lax.while_loop(lambda y: y < 9, lambda y: y + 1, x), array())
    assert load_leaf(block(loop, FLOAT, FLOAT)).most == 16


def test_what_a_client_gets_does_not_depend_on_the_others() -> None:
    leaf = load_leaf(block(module_of(lambda x: jnp.tanh(x) * 1.1 / (1 + x), array()), FLOAT, FLOAT))
    values = np.random.default_rng(1).normal(size=3000).astype(FLOAT)
    together = leaf.call_column(ScalarColumn(values), 0, 3000).items()
    for client in (0, 1023, 1024, 2999):
        assert np.asarray(leaf.call(values[client], client)).tobytes() == np.asarray(together[client]).tobytes()


@fl.federated_computation(fl.FederatedType(FLOAT, fl.CLIENTS))
def halves(x):
    found = fl.federated_map(computation(half_block()), x)
    return found, fl.federated_sum(found)


def test_a_federated_computation_calls_modules(local) -> None:
    found, total = halves([FLOAT(n) for n in range(2000)])
    assert (found[-1], total) == (999.5, 999500.0)


@pytest.mark.parametrize(
    ("given", "returned", "said"),
    [
        (1, 0, "the parameter binding of an HLO module to have each index from 0 to 0 once, found 1; bind each"),
        (-1, 0, "each index from 0 to 0 once, found -1"),
        (0, 7, "the result binding of an HLO module to have each index from 0 to 0 once, found 7"),
        (None, 0, "to have the structure of float32, found nothing; write a binding for each tensor"),
        (0, None, "the result binding of an HLO module to have the structure of float32, found nothing"),
        ([0], 0, "to have the structure of float32, found a struct of 1"),
    ],
)
def test_a_binding_that_does_not_fit_its_type_is_refused(given, returned, said) -> None:
    assert said in error_of(half_block(given=given, returned=returned))


def test_a_binding_with_an_index_twice_or_of_other_members_is_refused() -> None:
    content, pair = module_of(lambda x, y: x + y, array(), array()), StructType([("a", FLOAT), ("b", FLOAT)])
    assert "each index from 0 to 1 once, found 0, 0" in error_of(block(content, pair, FLOAT, given=[0, 0]))
    assert "found a struct of 1" in error_of(block(content, pair, FLOAT, given=[0]))
    assert "found a tensor" in error_of(block(content, pair, FLOAT, given=0))
    assert "to have the structure of no type, found a tensor" in error_of(block(content, None, FLOAT, given=0))


def test_a_module_with_other_parameters_or_results_is_refused() -> None:
    content = module_of(lambda x, y: (x + y, x), array(), array())
    assert "Expected an HLO module with 1 parameter, as the block's bindings say, found float32[], float32[]" in (
        error_of(block(content, FLOAT, [FLOAT, FLOAT]))
    )
    assert "with 1 result, as" in error_of(block(content, [FLOAT, FLOAT], FLOAT))
    assert "to take float32, int32, found float32[], float32[]" in error_of(
        block(content, [FLOAT, INT], [FLOAT, FLOAT])
    )
    assert "to return float32, float32[3], found" in error_of(block(content, [FLOAT, FLOAT], [FLOAT, (FLOAT, [3])]))
    assert "with 0 parameters, as the block's bindings say" in error_of(block(content, None, [FLOAT, FLOAT]))


@pytest.mark.parametrize(
    "type_spec", [(FLOAT, [None]), TensorType(FLOAT, None), np.str_, fl.SequenceType(FLOAT), fl.SequenceType(np.str_)]
)
def test_types_without_known_sizes_are_refused(type_spec) -> None:
    for types in ((type_spec, FLOAT), (FLOAT, type_spec)):
        message = block(module_of(lambda x: x, array()), *types, given=0, returned=0)
        assert "Expected tensors of numbers with known sizes as the types of an HLO module" in error_of(message)


def test_a_block_without_a_functional_type_is_refused() -> None:
    message = half_block()
    message.type.CopyFrom(TensorType(FLOAT).to_proto())
    assert "Expected an HLO module to have a functional type, found float32" in error_of(message)


def test_elements_that_the_language_does_not_have_are_refused() -> None:
    content = module_of(lambda x: x, array(dtype=jnp.float8_e5m2))
    found = error_of(block(content, FLOAT, FLOAT))
    assert "of the language's types as parameters and results of an HLO module, found tensor<f8E5M2>" in found


def test_calls_of_strange_code_are_refused() -> None:
    def called(x):
        return jax.ffi.ffi_call("somebody_elses_code", jax.ShapeDtypeStruct((), FLOAT))(x)

    def back(x):
        return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((), FLOAT), x)

    assert "to call functions of XLA only, found 'somebody_elses_code'" in (
        error_of(block(module_of(called, array()), FLOAT, FLOAT))
    )
    assert "to call functions of XLA only, found 'xla_" in error_of(block(module_of(back, array()), FLOAT, FLOAT))


def test_bytes_that_are_no_module_are_refused() -> None:
    content = half_block().xla.hlo_module.value
    for strange in (b"", b"\xff", b"not a module", content[: len(content) // 2], content[:-1], content[5:]):
        message = half_block()
        message.xla.hlo_module.value = strange
        found = error_of(message)
        unread = f"Expected an HLO module in an xla block, found bytes that JAX {jax.__version__} cannot read"
        assert unread in found or found.startswith(
            "Expected a complete HLO module in an xla block, found bytes that end"
        )
        assert "send it again" in found


def test_the_policy_of_exports_is_that_of_modules(monkeypatch) -> None:
    check_received(half_block(), CarrierPolicy())
    assert HLO in allowed_carriers(CarrierPolicy())
    assert HLO not in allowed_carriers(CarrierPolicy(jax_exports=False))
    with pytest.raises(CarrierError, match="found an HLO module; start the worker with --token-file"):
        check_received(half_block(), CarrierPolicy(jax_exports=False))
    monkeypatch.setattr(jax_api, "is_installed", lambda: False)
    with pytest.raises(CarrierError, match=r'JAX is not installed here, which an HLO module needs: pip install "fed'):
        check_received(half_block(), CarrierPolicy())


def test_a_version_of_jax_without_the_converter_is_named(monkeypatch) -> None:
    import jaxlib.xla_client

    message = half_block()
    monkeypatch.delattr(jaxlib.xla_client, "_xla")
    found = error_of(message)
    assert f"Expected a version of JAX that converts HLO modules, found {jax.__version__} (" in found
    assert "'_xla'" in found


@fedstack.jax_computation({"b": (FLOAT, [3]), "a": FLOAT}, INT)
def mixed(x, y):
    return {"sum": jnp.sum(jnp.tanh(x.b)) + x.a, "rest": [y + 1, x.b[::-1]]}


def test_plain_peers_get_the_block_that_they_know() -> None:
    message = portable(mixed.to_proto(), PLAIN)
    assert message.xla.hlo_module.type_url == f"type.googleapis.com/{HLO}"
    assert message.type == mixed.to_proto().type
    assert message.xla.parameter == bound([[0, 1], 2])
    assert message.xla.result == bound([0, [1, 2]])
    assert portable(mixed.to_proto(), Destination(takes_code=False)) is not message
    assert portable(mixed.to_proto(), Destination(takes_code=False)) == mixed.to_proto()


@pytest.mark.parametrize("clients", [1, 40])
def test_what_is_written_computes_the_same_as_the_export(clients) -> None:
    own, foreign = load_leaf(mixed.to_proto()), load_leaf(portable(mixed.to_proto(), PLAIN))
    assert isinstance(own, VectorizedLeaf)
    assert isinstance(foreign, LoopedLeaf)
    assert foreign.name == "mixed"
    payload = (np.array([1, 2, 3], FLOAT), FLOAT(0.5)), INT(4)
    for client in (None, clients):
        (total, (count, row)), (total_2, (count_2, row_2)) = own.call(payload, client), foreign.call(payload, client)
        assert total == pytest.approx(total_2, rel=1e-6)  # a group is compiled as a whole, and rounds otherwise
        assert (count, row.tolist()) == (count_2, row_2.tolist())


def test_functions_of_wide_types_and_without_parameters_are_written() -> None:
    nothing = fedstack.jax_computation()(lambda: jnp.arange(3.0))
    assert load_leaf(portable(nothing.to_proto(), PLAIN)).call(None).tolist() == [0.0, 1.0, 2.0]
    with jax_api.with_wide_types():
        wide = fedstack.jax_computation(np.float64)(lambda x: x / 3)
    assert load_leaf(portable(wide.to_proto(), PLAIN)).call(np.float64(1)) == 1 / 3


def test_unknown_sizes_and_sequences_cannot_be_written() -> None:
    rows = fedstack.jax_computation((FLOAT, [None, 2]))(lambda x: jnp.sum(x))
    with pytest.raises(CarrierError, match=r"arguments of '<lambda>', found float32\[rows,2\]: the peer is a plain"):
        portable(rows.to_proto(), PLAIN)
    taken = fedstack.jax_computation(fl.SequenceType(FLOAT))(lambda x: x.scan(jnp.add, jnp.float32(0)))
    with pytest.raises(CarrierError, match="takes neither sequences nor unknown sizes; declare all sizes, or use"):
        portable(taken.to_proto(), PLAIN)


def test_what_cannot_be_written_is_a_carrier_error(monkeypatch) -> None:
    monkeypatch.setattr(jax_api, "hlo_of", lambda *_: 1 / 0)
    other = fedstack.jax_computation(FLOAT)(lambda x: x * 17)
    with pytest.raises(CarrierError, match="Cannot write '<lambda>' as an HLO module, .*: division by zero; use a"):
        portable(other.to_proto(), PLAIN)
