"""Makes the functions of conformance rows JAX functions, wherever JAX can trace them: `pytest --leaves jax`."""

import dis
import sys
from collections.abc import Callable
from typing import Any

from fedstack.computations.leaves import python_computation as module
from fedstack.computations.leaves.xla.jax_computation import jax_computation
from fedstack.errors import FedstackError

_python = module.python_computation
# What functions that only compute refer to. Others may count their calls, wait, or fail.
_HARMLESS = {"np", "float32", "int32", "where", "maximum", "minimum", "sum", "zeros_like", "a", "b", "x", "y"}
traced: list[str] = []


def use_jax() -> None:
    """Replaces the decorator in rows that are imported from now on."""
    assert not any(name.startswith("fedstack.testing.rows") for name in sys.modules), "rows are imported already"
    module.python_computation = _decorator
    sys.modules.pop("fedstack.testing.leaves", None)


def _updates(function: Any) -> bool:
    """Returns whether a function updates something in place, which changes nothing in JAX."""
    names = [(found.opname, found.argrepr) for found in dis.get_instructions(function)]
    return any(name.startswith("INPLACE") or (name == "BINARY_OP" and shown.endswith("=")) for name, shown in names)


def _decorator(parameter_types: Any = None, result_type: Any = None, **options: Any) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        computation = _python(parameter_types, result_type, **options)(function)
        code = getattr(function, "__code__", None)
        if code is None or code.co_freevars or not set(code.co_names) <= _HARMLESS or options or _updates(function):
            return computation
        types = parameter_types if isinstance(parameter_types, (list, tuple)) else [parameter_types or ()]
        try:
            found = jax_computation(*types, result_type=result_type)(function)
        except FedstackError:  # strings, sequences, 64 bits, branches
            return computation
        if found.type_signature != computation.type_signature:
            return computation
        traced.append(computation._name)
        return found

    return decorate
