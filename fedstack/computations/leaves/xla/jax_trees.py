"""Makes the containers in which functions receive structs trees of JAX, so that `jax.grad` accepts them."""

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

from fedstack.computations.leaves.xla import jax_api
from fedstack.computations.types.language import StructType
from fedstack.computations.values.containers import Maker, argument_maker
from fedstack.computations.values.records import Record

_registered: "weakref.WeakSet[type]" = weakref.WeakSet()


def tree_maker(struct: StructType) -> Maker:
    """Returns the function that builds the container of a struct type, as a tree of JAX."""
    make = argument_maker(struct)

    def made(values: Sequence[object]) -> object:
        found = make(values)
        _register(type(found))
        return found

    return made


def field_names(kind: type) -> list[str]:
    """Returns the names of the fields of an attrs class or a dataclass; none for other classes."""
    fields: Iterable[Any] = getattr(kind, "__attrs_attrs__", ())
    return [field.name for field in fields] or list(getattr(kind, "__dataclass_fields__", ()))


def shown_tree(tree: object) -> str:
    """Returns the containers, shapes and dtypes of a tree of arrays as text."""
    dtype, shape = cast(object, getattr(tree, "dtype", None)), cast("Sequence[object]", getattr(tree, "shape", ()))
    if dtype is not None:
        return f"{dtype}[{','.join(map(str, shape))}]"
    members: list[str] = []
    if isinstance(tree, Mapping):
        named = cast("Mapping[object, object]", tree)
        members = [f"{key!r}: {shown_tree(member)}" for key, member in named.items()]
    elif tree is None or isinstance(tree, (bool, int, float, complex)):
        return repr(tree)
    else:
        with contextlib.suppress(ValueError):  # of what is no tree
            found: Any = jax_api.jax().tree_util.default_registry.flatten_one_level(tree)
            members = [shown_tree(member) for member in (found or [()])[0]]
    return f"{cast(object, tree).__class__.__name__}({', '.join(members)})"


def _register(kind: type) -> None:
    if kind in _registered or kind in (dict, list, tuple):
        return
    make_of = cast("Callable[..., object]", kind)
    names = field_names(kind)
    if Record in kind.__mro__:
        _register_tree(kind, lambda one: (tuple(one), None), lambda _, parts: make_of(parts))
    elif dict in kind.__mro__:
        _register_tree(kind, _items, lambda keys, parts: make_of(zip(keys, parts)))
    elif names:

        def parts_of(one: object) -> tuple[Sequence[object], None]:
            return [getattr(one, name) for name in names], None

        def make(_: None, parts: Sequence[object]) -> object:
            # Not by calling the class, which may refuse what is no array: JAX makes instances of other things, too.
            one: object = cast(Any, object).__new__(kind)
            for name, part in zip(names, parts):
                object.__setattr__(one, name, part)
            return one

        _register_tree(kind, parts_of, make)
    _registered.add(kind)


def _register_tree(
    kind: type,
    flatten: Callable[[Any], tuple[Sequence[object], Hashable]],
    unflatten: Callable[[Any, Sequence[object]], object],
) -> None:
    """Makes the instances of a class trees of JAX. Does nothing if they are trees already.

    Args:
      kind: The class.
      flatten: Returns the parts of an instance, and what else there is to know.
      unflatten: Makes an instance of what else there is to know, and of parts.
    """
    with contextlib.suppress(ValueError):
        jax_api.jax().tree_util.register_pytree_node(kind, flatten, unflatten)


def _items(one: Mapping[str, object]) -> tuple[Sequence[object], tuple[str, ...]]:
    return list(one.values()), tuple(one)
