"""Says what a computation means, in as few and as plain lines as possible; tests compare the executors with it.

It walks the message and evaluates by need: a name stands for a computation that runs when somebody first asks for it.
Tensors are NumPy values, structs are tuples, sequences are lists, a value that differs by client is `Clients`, and one
at the server or the same for all clients is the value itself. A float is folded along the tree that the executors
promise: a binary counter over clients, and what remains in the end from the smallest block up. An absent client is a
hole, `None`: nothing is computed for it, and a node of the tree with one child is that child.
"""

import federated_language as fl
import numpy as np


class Later:
    """Something to be evaluated when first asked for."""

    def __init__(self, evaluate):
        self._evaluate = evaluate

    def get(self):
        if self._evaluate is not None:
            self._value, self._evaluate = self._evaluate(), None
        return self._value


class Clients(list):
    """One value per client."""


class Reference:
    """Interprets computations for a number of clients, some of which may be absent from the start.

    `leaves` has the Python function of each leaf's content.
    """

    def __init__(self, leaves, clients, absent=()):
        self.leaves, self.clients, self.absent = leaves, clients, set(absent)

    def run(self, computation, *argument):
        """Calls a computation, as a message, with its argument, and returns the whole result."""
        with np.errstate(all="ignore"):
            found = deep(self.evaluate(computation, {})(*argument))
            return self.placed(fl.Type.from_proto(computation.type).result, found)

    def evaluate(self, computation, names):
        kind = computation.WhichOneof("computation")
        what = getattr(computation, kind)
        if kind == "reference":
            return names[what.name].get()
        if kind == "selection":
            return shallow(self.evaluate(what.source, names)[what.index])
        if kind == "struct":
            return tuple(Later(lambda e=element: self.evaluate(e.value, names)) for element in what.element)
        if kind == "call":
            argument = [Later(lambda: self.evaluate(what.argument, names))] if what.HasField("argument") else []
            return self.evaluate(what.function, names)(*argument)
        if kind == "lambda":
            return lambda *a: self.evaluate(what.result, {**names, what.parameter_name: Later(lambda: shallow(*a))})
        if kind == "block":
            for local in what.local:
                names = {**names, local.name: Later(lambda v=local.value, n=names: self.evaluate(v, n))}
            return self.evaluate(what.result, names)
        if kind == "literal":
            return fl.array_from_proto(what.value)
        if kind == "data":
            function = self.leaves[what.content.SerializeToString()]
            spread = computation.type.function.parameter.WhichOneof("type") == "struct"
            return lambda *a: function(*(deep(*a) if spread else map(deep, a)))
        assert kind == "intrinsic", kind
        type_spec = fl.Type.from_proto(computation.type)
        if what.uri == "generic_zero":
            return fold(type_spec, [], np.add, lambda dtype: 0)
        meaning = getattr(self, what.uri)
        result = type_spec.result
        member = result.member if isinstance(result, fl.FederatedType) else result
        return lambda argument: self.placed(result, meaning(member, deep(argument)))

    def placed(self, t, value):
        """Returns a value per client where the type has one, although the value is the same for all."""
        if isinstance(t, fl.StructType):
            return tuple(self.placed(m, v) for m, v in zip(t.children(), value, strict=True))
        differs = isinstance(t, fl.FederatedType) and t.placement is fl.CLIENTS and not t.all_equal
        return self.each(value) if differs else value

    def each(self, value):
        """Returns the values of all clients."""
        values = value if isinstance(value, Clients) else [value] * self.clients
        return Clients(None if client in self.absent else v for client, v in enumerate(values))

    def of_each(self, function, *values):
        """Calls a function for each client that is there."""
        rows = zip(*map(self.each, values), strict=True)
        return Clients(None if client in self.absent else deep(function(*row)) for client, row in enumerate(rows))

    def zip(self, value):
        if not has_clients(value):
            return value
        return self.each(Clients(self.client_of(value, client) for client in range(self.clients)))

    def client_of(self, value, client):
        """Returns a client's part of a nest of values."""
        if client in self.absent:
            return None
        if isinstance(value, tuple) and has_clients(value):
            return tuple(self.client_of(member, client) for member in value)
        return value[client] if isinstance(value, Clients) else value

    def mapped(self, function, value):
        return self.of_each(function, value) if isinstance(value, Clients) else deep(function(value))

    federated_value_at_clients = federated_value_at_server = federated_broadcast = lambda self, t, value: value
    federated_zip_at_clients = federated_zip_at_server = lambda self, t, value: self.zip(value)
    federated_eval_at_server = lambda self, t, function: deep(function())
    federated_eval_at_clients = lambda self, t, function: self.of_each(lambda _: function(), 0)
    federated_apply = federated_map_all_equal = lambda self, t, a: deep(a[0](a[1]))
    federated_map = lambda self, t, a: self.mapped(a[0], self.each(a[1]))
    federated_sum = lambda self, t, value: fold(t, self.each(value), np.add, lambda dtype: 0)
    federated_min = lambda self, t, value: fold(t, self.each(value), np.minimum, lambda dtype: limits(dtype).max)
    federated_max = lambda self, t, value: fold(t, self.each(value), np.maximum, lambda dtype: limits(dtype).min)
    federated_secure_sum = federated_secure_sum_bitwidth = lambda self, t, a: self.federated_sum(t, a[0])
    sequence_map = lambda self, t, a: [deep(a[0](element)) for element in a[1]]
    generic_plus = lambda self, t, a: self.binary(t, a, np.add)
    generic_multiply = lambda self, t, a: self.binary(t, a, np.multiply)

    def federated_mean(self, t, value):
        total = self.federated_sum(t, value)
        count = self.clients - len(self.absent)
        return leaves(t, lambda leaf, x: np.divide(x, leaf.dtype.type(count or np.nan)), total)

    def federated_weighted_mean(self, t, a):
        weighted = self.of_each(lambda v, w: leaves(t, lambda _, x: x * x.dtype.type(w), v), a[0], a[1])
        weights = [w for w in self.each(a[1]) if w is not None]
        weight = sum(map(int, weights)) if all(w.dtype.kind in "iu" for w in weights) else tree(np.add, self.each(a[1]))
        total = fold(t, weighted, np.add, lambda dtype: 0)
        return leaves(t, lambda leaf, x: np.divide(x, leaf.dtype.type(weight or np.nan)), total)

    def federated_aggregate(self, t, a):
        """Folds each 8 clients from zero, and merges what they make along the tree."""
        value, zero, accumulate, merge, report = a
        values, blocks = list(self.each(value)), []
        for start in range(0, len(values), 8):
            there = [v for v in values[start : start + 8] if v is not None]
            blocks.append(zero if there else None)
            for v in there:
                blocks[-1] = deep(accumulate((blocks[-1], v)))
        total = tree(lambda left, right: deep(merge((left, right))), blocks)
        return deep(report(zero if total is None else total))

    def federated_select(self, t, a):
        return self.of_each(lambda keys: [deep(a[3]((a[2], np.int32(key)))) for key in keys], a[0])

    federated_secure_select = federated_select

    def sequence_reduce(self, t, a):
        elements, total, function = a
        for element in elements:
            total = deep(function((total, element)))
        return total

    def sequence_sum(self, t, elements):
        total = fold(t, [], np.add, lambda dtype: 0)
        for element in elements:
            total = self.binary(t, (total, element), np.add)
        return total

    def binary(self, t, a, operation):
        if has_clients(a):
            return self.mapped(lambda pair: self.binary(t, pair, operation), self.zip(a))
        return leaves(t, lambda leaf, x, y: operation(x, y), *a)


def shallow(value):
    return value.get() if isinstance(value, Later) else value


def deep(value):
    """Evaluates all members of structs."""
    value = shallow(value)
    return tuple(map(deep, value)) if isinstance(value, tuple) else value


def has_clients(value):
    return isinstance(value, Clients) or (isinstance(value, tuple) and any(map(has_clients, value)))


def leaves(t, function, *values):
    """Applies a function to the tensors of structs, together with their type."""
    if isinstance(t, fl.StructType):
        return tuple(leaves(m, function, *(v[i] for v in values)) for i, m in enumerate(t.children()))
    return function(t, *values)


def fold(t, values, operation, empty):
    """Folds structs of tensors; without any, each tensor is full of `empty` of its dtype."""
    if isinstance(t, fl.StructType):
        parts = ([v and v[i] for v in values] for i in range(len(list(t.children()))))
        return tuple(fold(m, part, operation, empty) for m, part in zip(t.children(), parts))
    total = tree(operation, values)
    return np.full(t.shape, empty(t.dtype), t.dtype)[()] if total is None else total


def tree(operation, values):
    """Folds along the binary counter; `None` if nobody is there."""
    partials = [(-1, None)]

    def both(left, right):
        return right if left is None else left if right is None else operation(left, right)

    for value in values:
        level = 0
        while partials and partials[-1][0] == level:
            value, level = both(partials.pop()[1], value), level + 1
        partials.append((level, value))
    total = partials.pop()[1]
    while partials:
        total = both(partials.pop()[1], total)
    return total


def limits(dtype):
    return np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
