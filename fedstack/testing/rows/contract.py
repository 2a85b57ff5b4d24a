"""Conformance rows about the verbs: accepted and rejected inputs, the ownership of values, and closing."""

import gc
from typing import Any, cast

import numpy as np

from fedstack.computations.codec.arrays import array_to_proto
from fedstack.computations.leaves.python_computation import python_computation
from fedstack.computations.types.language import (
    ConcreteComputation,
    FunctionType,
    SequenceType,
    Struct,
    StructType,
    TensorType,
    struct_elements,
)
from fedstack.errors import ClosedError
from fedstack.testing.computation_builder import (
    as_expression,
    at_clients,
    at_server,
    computation,
    function,
    intrinsic,
    intrinsic_function,
    literal,
    struct,
)
from fedstack.testing.expectations import expect, expect_error, expect_same
from fedstack.testing.leaves import add, double, identity, seven
from fedstack.testing.promises import promise_of_executors
from fedstack.testing.subjects import ExecutorSubject

_PAIR = StructType([("a", np.int32), ("b", StructType([np.float32, TensorType(np.float32, [3])]))])


@promise_of_executors()
async def values_come_back_as_they_were_created(subject: ExecutorSubject) -> None:
    """`compute()` returns a NumPy scalar or array, `bytes`, a `Struct` with the names of its type, or a list."""
    executor = subject.executor(2)
    for value, type_spec in [
        (np.int32(3), np.int32),
        (np.arange(3, dtype=np.float32), TensorType(np.float32, [3])),
        ((1, (2.0, [1.0, 2.0, 3.0])), _PAIR),
        ([1, 2, 3], SequenceType(np.int32)),
        ([1.5, 2.5], at_clients(np.float32)),
        (1.5, at_clients(np.float32, all_equal=True)),
        (1.5, at_server(np.float32)),
    ]:
        created = await executor.create_value(value, type_spec)
        computed = await created.compute()
        if isinstance(value, np.ndarray):
            expect(isinstance(computed, np.ndarray), "a NumPy array", repr(computed))
        expect(str(created.type_signature) == str(_type(type_spec)), _type(type_spec), created.type_signature)
        if isinstance(computed, Struct):
            names = [name for name, _ in struct_elements(computed)]
            expect(names == ["a", "b"], "a struct with the names ['a', 'b']", names)
    pair = await executor.create_value({"b": (2.0, [1.0, 2.0, 3.0]), "a": 1}, _PAIR)
    expect_same(await pair.compute(), {"a": np.int32(1), "b": (np.float32(2), np.array([1.0, 2.0, 3.0], np.float32))})
    clients = await executor.create_value((1, 2), at_clients(np.int32))
    expect_same(await clients.compute(), [np.int32(1), np.int32(2)])


def _type(type_spec: Any) -> object:
    return TensorType(type_spec) if isinstance(type_spec, type) else type_spec


@promise_of_executors()
async def computations_and_arrays_carry_their_type(subject: ExecutorSubject) -> None:
    """Computations, their messages and `Array` messages need no type. A type that is passed must match their own."""
    executor = subject.executor()
    four = literal(np.array([4.0, 5.0], np.float32), np.float32, [2])
    for value in (four.proto, array_to_proto(np.array([4.0, 5.0], np.float32), np.dtype(np.float32))):
        expect_same(await (await executor.create_value(value)).compute(), np.array([4.0, 5.0], np.float32))
        expect_same(await (await executor.create_value(value, four.type)).compute(), np.array([4.0, 5.0], np.float32))
        await expect_error(executor.create_value(value, TensorType(np.int32, [2])), TypeError, "int32[2]", "float32[2]")
    for value in (add, add.to_proto()):
        created = await executor.create_value(value)
        expect(created.type_signature.is_equivalent_to(add.type_signature), add.type_signature, created.type_signature)
        await executor.create_value(value, add.type_signature)
        await expect_error(executor.create_value(value, double.type_signature), TypeError, "int32")


@promise_of_executors(tag="errors")
async def a_plain_value_needs_a_type(subject: ExecutorSubject) -> None:
    """`create_value` raises `TypeError` if a value that is not a computation is passed without a type."""
    executor = subject.executor()
    await expect_error(executor.create_value(3), TypeError, "type")
    await expect_error(executor.create_value([1, 2]), TypeError, "type")


@promise_of_executors(tag="errors")
async def a_misfit_raises_at_creation_with_its_path(subject: ExecutorSubject) -> None:
    """A value or an argument of a wrong type raises an error at creation, with both types and the path."""
    executor = subject.executor(2)
    for value, type_spec, *fragments in [
        ((1, (2.0, [1.0, 2.0])), _PAIR, "b[1]", "[3]", "[2]"),
        ((1, ("two", [1.0, 2.0, 3.0])), _PAIR, "b[0]", "float32", "two"),
        ([1, 2.5], SequenceType(np.int32), "[1]", "int32", "2.5"),
        ([1, 300], at_clients(np.int8), "client 1", "int8", "300"),
        ([(1, 2.0), (1,)], at_clients(StructType([np.int32, np.float32])), "client 1"),
        (np.float64(1), at_server(np.float32), "float32", "float64"),
    ]:
        await expect_error(executor.create_value(value, type_spec), TypeError, *fragments)
    inner = StructType([("weights", StructType([np.int32, TensorType(np.float32, [3])]))])
    model = StructType([("model", inner), ("step", np.int32)])
    whole = computation(lambda x: x, model)
    called = await executor.create_value(whole)
    longer = StructType([("weights", StructType([np.int32, TensorType(np.float32, [4])]))])
    wrong = await executor.create_value((((1, [0.0] * 4),), 2), StructType([("model", longer), ("step", np.int32)]))
    await expect_error(
        executor.create_call(called, wrong), TypeError, "arg.model.weights[1]", "float32[3]", "float32[4]"
    )


@promise_of_executors(tag="errors")
async def calls_check_that_there_is_a_function_and_an_argument(subject: ExecutorSubject) -> None:
    """`create_call` raises `TypeError` if the callee is not a function, or an argument is missing or unexpected."""
    executor = subject.executor()
    doubled, nullary = await executor.create_value(double), await executor.create_value(seven)
    three = await executor.create_value(3, np.int32)
    await expect_error(executor.create_call(three), TypeError, "function", "int32")
    await expect_error(executor.create_call(doubled), TypeError, "argument")
    await expect_error(executor.create_call(nullary, three), TypeError, "argument")
    expect_same(await (await executor.create_call(doubled, three)).compute(), np.int32(6))
    expect_same(await (await executor.create_call(nullary)).compute(), np.int32(7))


@promise_of_executors(tag="errors")
async def a_function_cannot_be_computed(subject: ExecutorSubject) -> None:
    """`compute()` raises `TypeError` if the value is a function."""
    executor = subject.executor()
    await expect_error((await executor.create_value(add)).compute(), TypeError, "function")
    body = await executor.create_value(function(lambda x: x, np.int32).proto)
    await expect_error(body.compute(), TypeError, "function")


@promise_of_executors()
async def structs_keep_names_and_order(subject: ExecutorSubject) -> None:
    """`create_struct` accepts any container of values, and keeps names and order. Selection is by position."""
    executor = subject.executor()
    one, two = await executor.create_value(1, np.int32), await executor.create_value(2.0, np.float32)
    for elements, expected in [
        ([one, two], "<int32,float32>"),
        ((one, two), "<int32,float32>"),
        ({"b": one, "a": two}, "<b=int32,a=float32>"),
        (Struct([("b", one), (None, two)]), "<b=int32,float32>"),
    ]:
        made = await executor.create_struct(elements)
        expect(str(made.type_signature) == expected, expected, made.type_signature)
        for position, value in enumerate([np.int32(1), np.float32(2)]):
            expect_same(await (await executor.create_selection(made, position)).compute(), value)
    empty = await executor.create_struct([])
    expect_same(await empty.compute(), ())
    nested = await executor.create_struct({"outer": await executor.create_struct({"inner": one})})
    expect_same(await nested.compute(), {"outer": {"inner": np.int32(1)}})


@promise_of_executors(tag="errors")
async def a_selection_out_of_range_raises_at_creation(subject: ExecutorSubject) -> None:
    """`create_selection` raises `TypeError` if the source is not a struct or the position is out of range."""
    executor = subject.executor()
    one = await executor.create_value(1, np.int32)
    made = await executor.create_struct([one, one])
    for index in (-1, 2):
        await expect_error(executor.create_selection(made, index), TypeError, str(index))
    await expect_error(executor.create_selection(one, 0), TypeError, "struct")


@promise_of_executors(tag="errors")
async def a_value_belongs_to_the_executor_that_made_it(subject: ExecutorSubject) -> None:
    """Passing a value to a verb of another executor raises `TypeError`. The message names both executors."""
    ours, theirs = subject.executor(1), subject.executor(1)
    function_here, value_here = await ours.create_value(double), await ours.create_value(3, np.int32)
    function_there, value_there = await theirs.create_value(double), await theirs.create_value(3, np.int32)
    pair_there = await theirs.create_struct([value_there])
    names = (repr(ours), repr(theirs))
    await expect_error(ours.create_call(function_here, value_there), TypeError, *names)
    await expect_error(ours.create_call(function_there, value_here), TypeError, *names)
    await expect_error(ours.create_struct([value_here, value_there]), TypeError, *names)
    await expect_error(ours.create_selection(pair_there, 0), TypeError, *names)
    await expect_error(ours.create_call(function_here, cast(Any, 3)), TypeError, "create_value")


@promise_of_executors()
async def intrinsics_are_called_through_the_verbs_too(subject: ExecutorSubject) -> None:
    """An intrinsic is a value of a functional type. Functions are passed as members of its argument struct."""
    executor = subject.executor(3)
    values = await executor.create_value([1, 2, 3], at_clients(np.int32))
    signature = FunctionType(StructType([double.type_signature, values.type_signature]), values.type_signature)
    mapping = await executor.create_value(
        intrinsic_function("federated_map", cast(Any, signature.parameter), signature.result).proto, signature
    )
    tripled = function(lambda v: as_expression(add)(as_expression(double)(v), v), np.int32)
    for body, expected in [(double.to_proto(), [2, 4, 6]), (tripled.proto, [3, 6, 9])]:
        argument = await executor.create_struct([await executor.create_value(body), values])
        mapped = await executor.create_call(mapping, argument)
        expect_same(await mapped.compute(), [np.int32(value) for value in expected])


@promise_of_executors(tag="errors")
async def the_number_of_client_values_is_that_of_the_executor(subject: ExecutorSubject) -> None:
    """A number of client values that differs from the executor's number of clients raises an error before any work."""
    executor = subject.executor(2)

    async def run() -> object:
        return await (await subject.call(executor, _summed(np.int32), [1, 2, 3])).compute()

    await expect_error(run(), ValueError, "2", "3")


def _summed(member: object) -> ConcreteComputation:
    return computation(lambda x: intrinsic("federated_sum", x), at_clients(member))


def _mapped(leaf: ConcreteComputation, member: object) -> ConcreteComputation:
    return computation(lambda x: intrinsic("federated_map", leaf, x), at_clients(member))


@promise_of_executors(tag="errors")
async def arguments_of_leaves_cannot_be_changed(subject: ExecutorSubject) -> None:
    """Leaf functions receive read-only arrays. An in-place update raises an error that suggests a copy."""
    pair = StructType([TensorType(np.float32, [3]), SequenceType(TensorType(np.float32, [3]))])

    @python_computation([pair], TensorType(np.float32, [3]))
    def change_first(x: Any) -> Any:
        array = x[0]
        array += 1
        return array

    @python_computation([pair], TensorType(np.float32, [3]))
    def change_element(x: Any) -> Any:
        array = next(iter(x[1]))
        array *= 2
        return array

    mine = np.zeros(3, np.float32)
    for leaf in (change_first, change_element):
        await expect_error(subject.run(leaf, (mine, [mine])), Exception, "read-only", "copy")
        await expect_error(subject.run(_mapped(leaf, pair), [(mine, [mine])] * 2), Exception, "read-only", "copy")
    mine += 1  # the caller's own array remains writable
    expect_same(mine, np.ones(3, np.float32))


@promise_of_executors(needs=["same process"])
async def a_returned_array_is_nobody_elses_buffer(subject: ExecutorSubject) -> None:
    """A returned array is writable, and shares no memory with arguments, with leaves or with other results."""
    vector = TensorType(np.float32, [3])
    mine, kept = np.ones(3, np.float32), np.ones(3, np.float32)

    @python_computation([], vector)
    def keep() -> Any:
        return kept

    @python_computation([vector], vector)
    def fresh(x: Any) -> Any:
        return x + np.float32(0)

    twice = computation(lambda x: struct(x, x), vector)
    for clients, made in [
        (0, [(keep, ()), (identity(vector), (mine,)), (fresh, (mine,)), (twice, (mine,))]),
        (1, [(_summed(vector), ([mine],))]),
        (3, [(_mapped(fresh, vector), ([mine] * 3,)), (_mapped(identity(vector), vector), ([mine] * 3,))]),
    ]:
        executor = subject.executor(clients)
        for called, arguments in made:
            value = await subject.call(executor, called, *arguments)
            await _scribble_and_compare(value)
    created = await subject.executor().create_value(mine, vector)
    await _scribble_and_compare(created)
    for array in (mine, kept):
        expect_same(array, np.ones(3, np.float32), "the caller's and the leaf's own array")


async def _scribble_and_compare(value: Any) -> None:
    before = _arrays_in(await value.compute())
    wanted = [np.array(array) for array in before]
    for array, other in zip(before, [*before[1:], None]):
        expect(array.flags.writeable, "a writable array", "a read-only array")
        array[:] = -1
        if other is not None:
            expect(not np.shares_memory(array, other), "separate arrays in one result", "arrays that share memory")
    for array, original in zip(_arrays_in(await value.compute()), wanted):
        expect_same(array, original, "the second result of a value after a change of its first result")


def _arrays_in(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return [value]
    members = [member for _, member in struct_elements(value)] if isinstance(value, Struct) else value
    return [array for member in members for array in _arrays_in(member)]


@promise_of_executors(tag="timing")
async def a_value_keeps_its_function_alive(subject: ExecutorSubject) -> None:
    """A value keeps its leaf functions alive, even after the decorated computation has been garbage-collected."""
    executor = subject.executor(2)

    def make(shift: int) -> ConcreteComputation:
        @python_computation([np.int32], np.int32)
        def shifted(x: Any) -> Any:
            return x + np.int32(shift)

        return shifted

    called = await subject.call(executor, make(1), 5)
    function_value = await executor.create_value(make(2))
    values = await executor.create_value([1, 2], at_clients(np.int32))
    signature = FunctionType(StructType([function_value.type_signature, values.type_signature]), values.type_signature)
    mapping = await executor.create_value(
        intrinsic_function("federated_map", cast(Any, signature.parameter), signature.result).proto
    )
    mapped = await executor.create_call(mapping, await executor.create_struct([function_value, values]))
    del function_value
    gc.collect()
    expect_same(await called.compute(), np.int32(6))
    expect_same(await mapped.compute(), [np.int32(3), np.int32(4)])


@promise_of_executors(tag="errors")
async def closing_is_final_and_can_be_repeated(subject: ExecutorSubject) -> None:
    """`close()` never raises and can be repeated. Afterwards every verb and `compute()` raise `ClosedError`."""
    executor = subject.executor(1)
    function_value = await executor.create_value(double)
    three = await executor.create_value(3, np.int32)
    called = await executor.create_call(function_value, three)
    done = await executor.create_call(function_value, three)
    made = await executor.create_struct([three])
    await done.compute()
    executor.close()
    executor.close()
    for attempt in (
        lambda: executor.create_value(3, np.int32),
        lambda: executor.create_value(double),
        lambda: executor.create_call(function_value, three),
        lambda: executor.create_struct([three]),
        lambda: executor.create_selection(made, 0),
        three.compute,
        called.compute,
        done.compute,
        made.compute,
    ):
        await expect_error(attempt(), ClosedError, "closed")


@promise_of_executors(tag="errors")
async def the_last_block_closes_the_executor(subject: ExecutorSubject) -> None:
    """`with` and `async with` return the executor. Blocks can be nested; the end of the outermost block closes it."""
    executor: Any = subject.executor(1)
    async with executor as entered:
        expect(entered is executor, "the block to return the executor itself", repr(entered))
        with executor as entered_again:
            expect(entered_again is executor, "the inner block to return the executor itself", repr(entered_again))
        three = await executor.create_value(3, np.int32)
        expect_same(await three.compute(), np.int32(3))
    await expect_error(three.compute(), ClosedError, "closed")
    await expect_error(executor.__aenter__(), ClosedError, "closed")
