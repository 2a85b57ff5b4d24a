"""Draws random well-typed computations, with arguments for them, and has what compares their results.

Computations are drawn type by type: an expression of a type is a name of that type, or an operation whose operands are
drawn in turn. What nobody needs may raise. Numbers are small integers and quarters, so that sums are exact; where a
mean makes others, both sides fold along the same tree.
"""

import math

import federated_language as fl
import federated_language.framework as ir
import numpy as np
from federated_language.common_libs.structure import Struct
from hypothesis import HealthCheck
from hypothesis import strategies as st
from reference_interpreter import Clients

import fedstack

INT, FLOAT = fl.TensorType(np.int32), fl.TensorType(np.float32)
VECTOR, SEQUENCE = fl.TensorType(np.int32, [2]), fl.SequenceType(np.int32)
LEAVES = {}
DEFAULT_CLIENTS = 3  # of a computation whose argument does not tell
FAILING = set()  # the numbers that functions of integers do not take, for the time of a test


def leaf(*parameters, result):
    def decorate(function):
        computation = fedstack.python_computation(parameters, result)(function)
        LEAVES[computation.to_proto().data.content.SerializeToString()] = function
        return computation

    return decorate


def small(x):
    return np.int32(int(x) % 1000)


def check_taken(x):
    if int(x) in FAILING:
        raise ValueError("this number is not taken")


def quarter(x):
    return np.float32(math.nan if math.isnan(x) else math.floor(math.fmod(x, 64) * 4) / 4)


@leaf(INT, INT, result=INT)
def add(x, y):
    check_taken(x)
    return small(int(x) + int(y))


@leaf(INT, result=INT)
def triple(x):
    check_taken(x)
    return small(3 * int(x) + 1)


@leaf(result=INT)
def five():
    return np.int32(5)


@leaf(FLOAT, result=INT)
def to_int(x):
    return np.int32(0 if math.isnan(x) else int(math.fmod(x, 64)))


@leaf(INT, result=FLOAT)
def to_float(x):
    check_taken(x)
    return quarter(int(x) / 4)


@leaf(INT, FLOAT, result=FLOAT)
def blend(x, y):
    check_taken(x)
    return quarter(float(y) / 2 + int(x) % 64)


@leaf(INT, INT, result=VECTOR)
def vector(x, y):
    check_taken(x)
    return np.array([x, y], np.int32)


@leaf(VECTOR, result=INT)
def last(x):
    return x[1]


@leaf(INT, result=SEQUENCE)
def count_up(x):
    return [small(i) for i in range(int(x) % 4)]


@leaf(INT, result=VECTOR)
def keys(x):
    check_taken(x)
    return np.array([int(x) % 3, int(x) % 2], np.int32)


@leaf(INT, result=INT)
def broken(x):
    raise AssertionError("nobody needs this")


def at_clients(member, all_equal=False):
    return fl.FederatedType(member, fl.CLIENTS, all_equal)


def at_server(member):
    return fl.FederatedType(member, fl.SERVER)


def is_plain(type_spec):
    kinds = (fl.FederatedType, fl.FunctionType)
    return not isinstance(type_spec, kinds) and all(map(is_plain, type_spec.children()))


def is_numbers(type_spec):
    return not isinstance(type_spec, fl.SequenceType) and all(map(is_numbers, type_spec.children()))


def structs(members, max_size=3):
    named = st.lists(
        st.tuples(st.sampled_from("cab"), members), min_size=1, max_size=max_size, unique_by=lambda m: m[0]
    )
    return st.builds(fl.StructType, st.lists(members, min_size=1, max_size=max_size) | named)


floats = structs(st.just(FLOAT))
numbers = st.recursive(st.sampled_from([INT, INT, FLOAT, VECTOR]), structs, max_leaves=3)
plain = numbers | st.just(SEQUENCE) | structs(st.sampled_from([INT, SEQUENCE]))
placed = st.one_of(
    st.builds(at_server, st.sampled_from([INT, FLOAT, VECTOR]) | floats), st.builds(at_server, plain),
    st.builds(at_clients, plain), st.builds(at_clients, plain, st.booleans()), plain,
)  # fmt: skip
results = placed | structs(placed) | structs(structs(placed, 2), 2)


class Expressions:
    """Draws expressions of a given type, in which the names in `names` may occur."""

    def __init__(self, draw):
        self.draw = draw
        self.fresh = 0

    def expression(self, wanted, names, fuel):
        if is_plain(wanted):
            fuel = min(fuel, 2)  # most of a computation is about placed values
        rules = [rule for rule in self.rules(wanted, names) if fuel > 0 or rule in self.cheap]
        return self.draw(st.sampled_from(rules))(wanted, names, fuel - 1)

    def rules(self, wanted, names):
        self.cheap = []
        if paths(wanted, names):
            self.cheap.append(self.name)
        general = [self.member, self.local, self.local, self.applied, self.curried, self.handed]
        if isinstance(wanted, fl.StructType):
            return [
                *self.add_cheap(self.packed),
                *general,
                *([self.generic] if is_plain(wanted) and is_numbers(wanted) else []),
            ]
        if isinstance(wanted, fl.FederatedType):
            return [*self.add_cheap(self.of_value), *general, *self.federated(wanted)]
        if wanted == SEQUENCE:
            return [*self.add_cheap(self.of_leaf), *general, self.sequence_map]
        return [*self.add_cheap(self.literal), self.of_leaf, self.generic, self.fold_of_sequence, *general]

    def add_cheap(self, rule):
        self.cheap.append(rule)
        return self.cheap

    # Names, structs and calls.

    def name(self, wanted, names, fuel):
        name, type_spec, path = self.draw(st.sampled_from(paths(wanted, names)))
        found = ir.Reference(name, type_spec)
        for index in path:
            found = ir.Selection(found, index=index)
        return found

    def packed(self, wanted, names, fuel):
        return ir.Struct([(name, self.expression(member, names, fuel)) for name, member in wanted.items()])

    def member(self, wanted, names, fuel):
        members = [self.unneeded(names), self.expression(wanted, names, fuel)]
        index = self.draw(st.integers(0, 1))
        return ir.Selection(ir.Struct(members if index else members[::-1]), index=index)

    def unneeded(self, names):
        return self.draw(st.sampled_from([call(broken, call(five)), call(five)]))

    def new_name(self, names):
        # An old name shadows.
        if names and self.draw(st.booleans()):
            return self.draw(st.sampled_from(sorted(names)))
        self.fresh += 1
        return f"n{self.fresh}"

    def local(self, wanted, names, fuel):
        bound = []
        for _ in range(self.draw(st.integers(1, 3))):
            name = self.new_name(names)
            if self.draw(st.integers(0, 3)) == 0:
                bound.append((name, self.unneeded(names)))
                names = {known: t for known, t in names.items() if known != name}
                continue
            type_spec = self.draw(self.types(wanted) | st.just(wanted))
            if self.draw(st.integers(0, 3)) == 0 and is_plain(type_spec):
                type_spec = fl.FunctionType(self.draw(plain), type_spec)
                bound.append((name, self.function(type_spec, names, fuel)))
            else:
                bound.append((name, self.expression(type_spec, names, fuel)))
            names = {**names, name: type_spec}
        return ir.Block(bound, self.expression(wanted, names, fuel))

    def types(self, wanted):
        """Where clients run, nothing is placed."""
        return plain if is_plain(wanted) else placed

    def function(self, type_spec, names, fuel):
        name = self.new_name(names)
        return ir.Lambda(
            name, type_spec.parameter, self.expression(type_spec.result, {**names, name: type_spec.parameter}, fuel)
        )

    def applied(self, wanted, names, fuel):
        parameter = self.draw(self.types(wanted))
        body = self.function(fl.FunctionType(parameter, wanted), names, fuel)
        return ir.Call(body, self.expression(parameter, names, fuel))

    def curried(self, wanted, names, fuel):
        outer, inner = self.draw(self.types(wanted)), self.draw(self.types(wanted))
        name = self.new_name(names)
        body = self.function(fl.FunctionType(inner, wanted), {**names, name: outer}, fuel)
        once = ir.Call(ir.Lambda(name, outer, body), self.expression(outer, names, fuel))
        return ir.Call(once, self.expression(inner, names, fuel))

    def handed(self, wanted, names, fuel):
        """Calls a function that takes a function."""
        signature = fl.FunctionType(self.draw(plain), self.draw(plain))
        name = self.new_name(names)
        inside = {**names, name: signature}
        called = ir.Call(ir.Reference(name, signature), self.expression(signature.parameter, inside, fuel))
        other = self.new_name(inside)
        body = ir.Block([(other, called)], self.expression(wanted, {**inside, other: signature.result}, fuel))
        return ir.Call(ir.Lambda(name, signature, body), self.function(signature, names, fuel))

    # Plain values.

    def literal(self, wanted, names, fuel):
        if wanted == VECTOR:
            return call(vector, call(five), call(five))
        if wanted == FLOAT:
            return ir.Literal(np.float32(self.draw(st.integers(0, 40)) / 4), FLOAT)
        return ir.Literal(np.int32(self.draw(st.integers(0, 40))), INT)

    def of_leaf(self, wanted, names, fuel):
        made = {
            INT: [add, triple, five, to_int, last],
            FLOAT: [to_float, blend],
            VECTOR: [vector, keys],
            SEQUENCE: [count_up],
        }
        chosen = self.draw(st.sampled_from(made[wanted]))
        parameter = chosen.type_signature.parameter
        if parameter is None:
            return call(chosen)
        types = parameter.children() if isinstance(parameter, fl.StructType) else [parameter]
        return call(chosen, *(self.expression(t, names, fuel) for t in types))

    def generic(self, wanted, names, fuel):
        uri = self.draw(st.sampled_from(["generic_plus", "generic_multiply"]))
        return intrinsic(uri, wanted, self.expression(wanted, names, fuel), self.expression(wanted, names, fuel))

    def sequence_map(self, wanted, names, fuel):
        function = self.function(fl.FunctionType(INT, INT), names, fuel)
        return intrinsic("sequence_map", SEQUENCE, function, self.expression(SEQUENCE, names, fuel))

    def fold_of_sequence(self, wanted, names, fuel):
        if wanted == INT and self.draw(st.booleans()):
            return intrinsic("sequence_sum", INT, self.expression(SEQUENCE, names, fuel))
        zero = self.expression(wanted, names, fuel)
        function = self.function(fl.FunctionType(fl.StructType([wanted, INT]), wanted), names, fuel)
        return intrinsic("sequence_reduce", wanted, self.expression(SEQUENCE, names, fuel), zero, function)

    # Placed values.

    def inside(self, names):
        """What a function that runs in one place may refer to."""
        return {
            name: t
            for name, t in names.items()
            if is_plain(t) or (isinstance(t, fl.FunctionType) and is_plain(t.parameter) and is_plain(t.result))
        }

    def of_value(self, wanted, names, fuel):
        """Makes a placed value out of a plain one."""
        value = self.expression(wanted.member, self.inside(names), min(fuel, 1))
        if wanted.placement is fl.SERVER:
            return intrinsic("federated_value_at_server", wanted, value)
        shared = intrinsic("federated_value_at_clients", at_clients(wanted.member, True), value)
        return shared if wanted.all_equal else intrinsic("federated_map", wanted, identity(wanted.member), shared)

    def federated(self, wanted):
        mapped = [self.mapped] * 3
        zipped = [self.zipped] * 2 if isinstance(wanted.member, fl.StructType) else []
        if wanted.placement is fl.SERVER:
            summed = [self.summed] * 8 if is_numbers(wanted.member) else []
            return [*mapped, *zipped, *summed, self.evaluated, self.aggregated, self.aggregated]
        if wanted.all_equal:
            return [*mapped, self.broadcast, self.broadcast]
        return [*mapped, *zipped, self.evaluated, *([self.selected] * 3 if wanted.member == SEQUENCE else [])]

    def mapped(self, wanted, names, fuel):
        member = self.draw(plain)
        function = self.function(fl.FunctionType(member, wanted.member), self.inside(names), fuel)
        if wanted.placement is fl.SERVER:
            return intrinsic("federated_apply", wanted, function, self.expression(at_server(member), names, fuel))
        all_equal = wanted.all_equal or self.draw(st.integers(0, 3)) == 0
        value = self.expression(at_clients(member, all_equal), names, fuel)
        return intrinsic(f"federated_map{'_all_equal' if wanted.all_equal else ''}", wanted, function, value)

    def evaluated(self, wanted, names, fuel):
        body = ir.Lambda(None, None, self.expression(wanted.member, self.inside(names), fuel))
        return intrinsic(f"federated_eval_at_{place(wanted)}", wanted, body)

    def broadcast(self, wanted, names, fuel):
        return intrinsic("federated_broadcast", wanted, self.expression(at_server(wanted.member), names, fuel))

    def zipped(self, wanted, names, fuel):
        def member(type_spec):
            if isinstance(type_spec, fl.StructType) and self.draw(st.booleans()):
                return ir.Struct([(name, member(t)) for name, t in type_spec.items()])
            all_equal = wanted.placement is fl.SERVER or self.draw(st.integers(0, 3)) == 0
            return self.expression(fl.FederatedType(type_spec, wanted.placement, all_equal), names, fuel)

        members = ir.Struct([(name, member(t)) for name, t in wanted.member.items()])
        return intrinsic(f"federated_zip_at_{place(wanted)}", wanted, members)

    def summed(self, wanted, names, fuel):
        rules = ["federated_sum"]
        dtypes = {t.dtype.name for t in tensors(wanted.member)}
        if "float32" in dtypes and len(dtypes) == 1:
            rules += ["federated_mean", "federated_weighted_mean"]
        if "int32" in dtypes and len(dtypes) == 1:
            rules += ["federated_secure_sum", "federated_secure_sum_bitwidth"]
        uri = self.draw(st.sampled_from([*rules, "federated_min", "federated_max"]))
        values = self.expression(at_clients(wanted.member), names, fuel)
        if uri == "federated_weighted_mean":
            return intrinsic(
                uri, wanted, values, self.expression(at_clients(self.draw(st.sampled_from([INT, FLOAT]))), names, fuel)
            )
        if uri.startswith("federated_secure"):
            values = intrinsic("federated_map", at_clients(wanted.member), self.clamp(wanted.member), values)
            return intrinsic(uri, wanted, values, ir.Literal(np.int32(1000 if uri.endswith("sum") else 10), INT))
        return intrinsic(uri, wanted, values)

    def clamp(self, member):
        """Returns a function to a struct of numbers that a secure sum allows."""

        def clamped(t, x):
            if isinstance(t, fl.StructType):
                return ir.Struct(
                    [(name, clamped(m, ir.Selection(x, index=i))) for i, (name, m) in enumerate(t.items())]
                )
            return call(triple, x) if t == INT else call(keys, call(last, x))

        return ir.Lambda("clamp", member, clamped(member, ir.Reference("clamp", member)))

    def aggregated(self, wanted, names, fuel):
        """Aggregates integers, associatively: children of a composing executor each begin at zero."""
        member, inside = self.draw(plain), self.inside(names)
        pair = fl.StructType([INT, member])
        x = ir.Reference("pair", pair)  # shadows nothing: drawn names are others
        value = ir.Call(self.function(fl.FunctionType(member, INT), inside, fuel), ir.Selection(x, index=1))
        accumulate = ir.Lambda("pair", pair, call(add, ir.Selection(x, index=0), value))
        report = self.function(fl.FunctionType(INT, wanted.member), inside, fuel)
        values = self.expression(at_clients(member), names, fuel)
        return intrinsic(
            "federated_aggregate",
            wanted,
            values,
            ir.Literal(np.int32(0), INT),
            accumulate,
            add.to_building_block(),
            report,
        )

    def selected(self, wanted, names, fuel):
        member, inside = self.draw(plain), self.inside(names)
        function = self.function(fl.FunctionType(fl.StructType([member, INT]), INT), inside, fuel)
        chosen = intrinsic(
            "federated_map", at_clients(VECTOR), keys.to_building_block(), self.expression(at_clients(INT), names, fuel)
        )
        limit = intrinsic("federated_value_at_server", at_server(INT), ir.Literal(np.int32(2), INT))
        uri = self.draw(st.sampled_from(["federated_select", "federated_secure_select"]))
        return intrinsic(uri, wanted, chosen, limit, self.expression(at_server(member), names, fuel), function)


def paths(wanted, names):
    """Lists where a value of a type is: name, the name's type, indices of members."""
    found = []

    def visit(name, whole, type_spec, path):
        if type_spec == wanted:
            found.append((name, whole, path))
        if isinstance(type_spec, fl.StructType):
            for index, member in enumerate(type_spec.children()):
                visit(name, whole, member, (*path, index))

    for name, type_spec in names.items():
        visit(name, type_spec, type_spec, ())
    return found


def differs_by_client(type_spec):
    if isinstance(type_spec, fl.FederatedType):
        return type_spec.placement is fl.CLIENTS and not type_spec.all_equal
    return any(map(differs_by_client, type_spec.children()))


def tensors(type_spec):
    return (
        [type_spec] if isinstance(type_spec, fl.TensorType) else [t for m in type_spec.children() for t in tensors(m)]
    )


def place(type_spec):
    return "clients" if type_spec.placement is fl.CLIENTS else "server"


def call(function, *arguments):
    block = function if isinstance(function, ir.ComputationBuildingBlock) else function.to_building_block()
    if not arguments:
        return ir.Call(block)
    return ir.Call(block, arguments[0] if len(arguments) == 1 else ir.Struct(arguments))


def intrinsic(uri, result, *arguments):
    types = [argument.type_signature for argument in arguments]
    if uri not in ("federated_map_all_equal", "federated_zip_at_clients"):
        types = [
            at_clients(t.member) if isinstance(t, fl.FederatedType) and t.placement is fl.CLIENTS else t for t in types
        ]
    parameter = types[0] if len(types) == 1 else fl.StructType(types)
    return call(ir.Intrinsic(uri, fl.FunctionType(parameter, result)), *arguments)


def identity(type_spec):
    return ir.Lambda("same", type_spec, ir.Reference("same", type_spec))


@st.composite
def values(draw, type_spec, clients):
    """Draws Python values and what they mean to the reference."""
    if isinstance(type_spec, fl.FederatedType):
        if type_spec.placement is fl.SERVER or type_spec.all_equal:
            return draw(values(type_spec.member, clients))
        drawn = [draw(values(type_spec.member, clients)) for _ in range(clients)]
        return [value for value, _ in drawn], Clients(meaning for _, meaning in drawn)
    if isinstance(type_spec, fl.StructType):
        drawn = [draw(values(member, clients)) for member in type_spec.children()]
        names = [name for name, _ in type_spec.items()]
        given = [value for value, _ in drawn]
        shuffled = dict(draw(st.permutations(list(zip(names, given, strict=True))))) if names[0] else tuple(given)
        return shuffled, tuple(meaning for _, meaning in drawn)
    if isinstance(type_spec, fl.SequenceType):
        drawn = [draw(values(type_spec.element, clients)) for _ in range(draw(st.integers(0, 3)))]
        return [value for value, _ in drawn], [meaning for _, meaning in drawn]
    if type_spec == VECTOR:
        value = [draw(st.integers(0, 999)) for _ in range(2)]
        return value, np.array(value, np.int32)
    if type_spec == FLOAT:
        value = draw(st.integers(-200, 200)) / 4
        return value, np.float32(value)
    value = draw(st.integers(0, 999))
    return value, np.int32(value)


@st.composite
def programs(draw, fuel=5):
    parameter, result = draw(results), draw(results)
    clients = draw(st.integers(0, 5)) if differs_by_client(parameter) else DEFAULT_CLIENTS
    value, meaning = draw(values(parameter, clients))
    body = Expressions(draw).function(fl.FunctionType(parameter, result), {}, fuel)
    return ir.ConcreteComputation.from_building_block(body), value, meaning, clients


def without(value, type_spec, absent):
    """Returns an argument in which some clients do not take part."""
    if isinstance(type_spec, fl.FederatedType) and differs_by_client(type_spec):
        return [fedstack.ClientFailure() if client in absent else v for client, v in enumerate(value)]
    if isinstance(type_spec, fl.StructType):
        if isinstance(value, dict):
            return {name: without(value[name], member, absent) for name, member in type_spec.items()}
        return tuple(without(v, member, absent) for v, member in zip(value, type_spec.children(), strict=True))
    return value


def bare(value):
    """Returns structs as tuples, whatever container they come in, and `None` for clients that are absent."""
    if isinstance(value, fedstack.ClientFailure):
        return None
    if isinstance(value, list):
        return [bare(member) for member in value]
    if isinstance(value, dict):
        return tuple(bare(member) for member in value.values())
    if isinstance(value, (tuple, Struct)):
        return tuple(bare(member) for member in value)
    return value


def assert_same(found, expected):
    if isinstance(expected, (tuple, list)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif expected is None:
        assert found is None
    else:
        assert (found.dtype, np.shape(found)) == (expected.dtype, np.shape(expected))
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")


# Drawing takes its time, and one set of contexts serves all examples of a test.
SLOW_IS_FINE = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
    HealthCheck.function_scoped_fixture,
]
