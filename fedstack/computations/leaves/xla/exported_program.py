"""Reads functions that JAX has exported, and checks them before they run. Says why others cannot be exported."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from fedstack.computations.leaves.xla.jax_api import (
    FlatFunction,
    Traced,
    cost_of,
    jax,
    shaped,
    version,
    with_wide_types,
    without_frames,
)
from fedstack.computations.leaves.xla.xla_program import XlaProgram
from fedstack.computations.types.language import TensorType
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.traceback_filter import users_lines, without_callers


def shown_array(found: Traced) -> str:
    """Returns the description of an array as text."""
    return f"{found.dtype}[{','.join(map(str, found.shape))}]"


def _fits(shape: Sequence[object], tensor: TensorType, *, is_result: bool) -> bool:
    """Returns whether a shape fits a type. A result of any size may also have a fixed size."""
    declared = tensor.shape or ()
    return len(shape) == len(declared) and all(
        (known is None and (is_result or not isinstance(size, int))) or (isinstance(size, int) and size == known)
        for size, known in zip(shape, declared)
    )


_CUSTOM_CALL = re.compile(r"custom_call\s+@(?:\"([^\"]*)\"|([\w.$-]+))")
# What XLA and JAX implement themselves. Other targets may be callbacks, whose address is part of the export.
_HARMLESS = re.compile(
    r"lapack_\w+|(dynamic_)?ducc_fft|(cu|hip)(_threefry2x32(_ffi)?|_lu_pivots_to_permutation)"
    r"|(cusolver|cublas|hipsolver|hipblas)_\w+|(ApproxTopK|TopK|Eigh|Qr|LuDecomposition|Sharding)"
    r"|(mhlo|stablehlo|chlo)\.\w+|ProductOfElementaryHouseholderReflectors|annotate_device_placement"
    r"|SPMDFullToShardShape|SPMDShardToFullShape|shape_assertion"
)
# The length of code of some ten operations.
_SHORT = 4096
# Operations that exchange data with other programs or processes, for which they would wait forever.
_ELSEWHERE = re.compile(r"stablehlo\.(?:infeed|outfeed|send|recv)\b")


@attrs.frozen(eq=False)
class Export:
    """An exported function.

    Attributes:
      call: The function.
      arguments: Descriptions of its arguments.
      results: Descriptions of its results.
      platforms: The platforms that it is for.
      code: The function as text of StableHLO, without locations.
    """

    call: FlatFunction
    arguments: Sequence[Traced]
    results: Sequence[Traced]
    platforms: Sequence[str]
    code: str

    @classmethod
    def of(cls, found: Any) -> "Export":
        """Returns what JAX has read."""
        code = re.sub(r"\bloc\(.*", "", found.mlir_module())
        return cls(found.call, found.in_avals, found.out_avals, found.platforms, code)


def read_export(content: bytes, name: str) -> Export:
    """Reads an exported function.

    Args:
      content: The function as bytes; see `jax_api.exported`.
      name: The name of the function in messages.

    Raises:
      CarrierError: If the bytes are no function.
    """
    try:
        return Export.of(jax().export.deserialize(bytearray(content)))
    except Exception as error:  # flatbuffers and MLIR raise errors of any kind
        raise CarrierError(
            f"Expected {name!r} as an export of JAX, found bytes that JAX {version()} cannot read: "
            f"{text_of(error)}; use the same version of JAX in both processes"
        ) from error


class ExportedProgram(XlaProgram):
    """An exported function that is ready to run on this process's default device.

    Args:
      found: The function.
      name: The name of the function in messages.

    Raises:
      CarrierError: If this process cannot run the function.
    """

    def __init__(self, found: Export, name: str) -> None:
        self._code = found.code
        _check_targets(found.code, name)
        backend = jax().default_backend()
        if backend not in found.platforms and not (backend == "gpu" and {"cuda", "rocm"} & set(found.platforms)):
            raise CarrierError(
                f"Expected {name!r} to be exported for the platform {backend!r} of this process, found an export for "
                f"{', '.join(found.platforms)}; export it on such a machine, or set JAX_PLATFORMS"
            )
        # On CPUs they take three to ten times longer in a loop.
        can_loop = "stablehlo.convolution" not in found.code
        # With no loop and little code, it takes little time to compile. Nothing follows for how long it runs.
        self.is_short = len(found.code) <= _SHORT and "stablehlo.while" not in found.code
        super().__init__(name, found.call, found.arguments, found.results, can_loop=can_loop)

    def check(self, parameter: Sequence[TensorType], result: Sequence[TensorType]) -> None:
        """Checks that the function has the tensors of these types as arguments and results.

        Raises:
          CarrierError: If it has others.
        """
        for kind, found, tensors in (("take", self.arguments, parameter), ("return", self.results, result)):
            expected = [str(tensor) for tensor in tensors]
            fits = len(found) == len(tensors) and all(
                np.dtype(one.dtype) == tensor.dtype and _fits(one.shape, tensor, is_result=tensors is result)
                for one, tensor in zip(found, tensors)
            )
            if not fits:
                raise CarrierError(
                    f"Expected the function {self.name!r} to {kind} {', '.join(expected) or 'nothing'}, found "
                    f"{', '.join(map(shown_array, found)) or 'nothing'}; export it again"
                )

    def cost(self) -> tuple[float, float] | None:
        """Returns XLA's estimate of operations and of accessed bytes; `None` if the function has parts without one."""
        if "stablehlo.while" in self._code or "custom_call" in self._code:
            return None
        with with_wide_types() if self.is_wide else contextlib.nullcontext():
            return cost_of(self.function, [shaped(one.shape, one.dtype) for one in self.arguments])


def _check_targets(code: str, name: str) -> None:
    targets = [quoted or plain for quoted, plain in _CUSTOM_CALL.findall(code)]
    strange = [target for target in targets if not _HARMLESS.fullmatch(target)] + _ELSEWHERE.findall(code)
    if strange or len(targets) != code.count("custom_call"):
        raise CarrierError(
            f"Expected {name!r} to call functions of XLA only, found "
            f"{', '.join(map(repr, strange)) or 'a call that cannot be read'}; remove callbacks and kernels of "
            "your own"
        )


# What calls Python from compiled code, by the name of the operation.
_CALLBACKS = {
    "debug_print": "jax.debug.print",
    "debug_callback": "jax.debug.callback",  # also jax.debug.print, before 0.8
    "pure_callback": "jax.pure_callback",
    "io_callback": "jax.experimental.io_callback",
}


def why_not_exported(function: FlatFunction, arguments: Iterable[Traced], name: str) -> str | None:
    """Returns why a function that JAX can trace cannot be exported, with the user's lines; `None` if it is not known.

    Args:
      function: The function.
      arguments: Descriptions of its arguments.
      name: The name of the function in messages.
    """
    traced: Any = jax().make_jaxpr(function)(*arguments)
    for operation in _operations(traced.jaxpr):
        found = _CALLBACKS.get(operation.primitive.name)
        if found is not None:
            error = TypeError()  # it stands for one that would be raised where the operation was traced
            error.__traceback__ = without_callers(operation.source_info.traceback.as_python_traceback())
            without_frames(error)
            return (
                f"Expected {name!r} to consist of operations that XLA compiles, found {found}, which calls Python; "
                "remove it, or use fedstack.python_computation, whose functions may call any Python code"
                f"{users_lines(error)}"
            )
    if any(isinstance(one, jax().core.Tracer) for one in traced.consts):
        return (
            f"Expected {name!r} to use its arguments and arrays, found a value of another function that JAX has "
            "traced; let that function return the value, and pass it as an argument"
        )
    return None


def _operations(traced: Any) -> Iterator[Any]:
    """Yields the operations of a traced function, with those of its loops and conditionals."""
    for operation in traced.eqns:
        yield operation
        for inner in jax().tree_util.tree_leaves(list(operation.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _operations(inner)
