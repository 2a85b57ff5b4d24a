"""Wraps JAX, which is optional and takes a while to import. No other module imports it.

Some versions of JAX return wrong results on CPUs without any error, so they are refused:

| versions | wrong results of | issue of JAX |
| --- | --- | --- |
| 0.5.3 to 0.8.1 | constants that a function under `vmap` captures | 33479 |
| 0.10.2 | products of matrices and vectors under `vmap` that are summed | 39103 |
"""

import contextlib
import functools
import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import TensorType
from fedstack.errors import CarrierError, InvalidComputationError
from fedstack.foundations.error_text import text_of

# What JAX passes to functions that it traces, and the arrays that it returns. JAX's types are not public.
Traced: TypeAlias = Any
FlatFunction: TypeAlias = Callable[..., Sequence[Traced]]
Version: TypeAlias = tuple[int, ...]

_OLDEST: Version = (0, 5)
_WRONG: tuple[tuple[Version, Version], ...] = (((0, 5, 3), (0, 8, 1)), ((0, 10, 2), (0, 10, 2)))
_ADVICE = 'install a version that computes correctly: pip install "fedstack[jax]"'
# Exports contain code for all of them, so that workers may have other devices than the process that exports.
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# An operation uses one thread, because several clients run at the same time.
_OPTIONS = {"cpu": {"xla_cpu_multi_thread_eigen": False}}


@functools.cache
def jax() -> Any:
    """Returns the module `jax`.

    Raises:
      ImportError: If JAX is not installed, or the installed version returns wrong results.
    """
    try:
        found = cast(Any, importlib.import_module("jax"))
        importlib.import_module("jax.export")
    except ImportError as error:
        raise ImportError('JAX is not installed: pip install "fedstack[jax]"') from error
    check_version(found.__version__)
    return found


def check_version(version: str) -> None:
    """Checks a version of JAX.

    Raises:
      ImportError: If this version is too old, or returns wrong results.
    """
    number = version_of(version)
    if number < _OLDEST:
        raise ImportError(f"Expected JAX {'.'.join(map(str, _OLDEST))} or later, found {version}; {_ADVICE}")
    if any(first <= number[:3] <= last for first, last in _WRONG):
        raise ImportError(f"JAX {version} returns wrong results on CPUs; {_ADVICE}")


def version_of(text: str) -> Version:
    """Returns a version as numbers, such as `(0, 8, 2)`, without suffixes."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:4])


@functools.cache
def is_installed() -> bool:
    """Returns whether JAX is installed in a version that is not refused. Does not import it."""
    try:
        check_version(metadata.version("jax"))
    except (ImportError, metadata.PackageNotFoundError):
        return False
    return True


def version() -> str:
    """Returns the version of JAX that is installed."""
    return jax().__version__


def has_traced(arguments: object) -> bool:
    """Returns whether the arguments of a call contain tracers of JAX."""
    return any(isinstance(leaf, jax().core.Tracer) for leaf in jax().tree_util.tree_leaves(arguments))


def shaped(shape: Sequence[object], dtype: np.dtype[Any]) -> Traced:
    """Returns a description of an array, whose sizes are numbers or symbols."""
    return jax().ShapeDtypeStruct(tuple(shape), dtype)


def symbol(name: str) -> Traced:
    """Returns a symbol for an unknown size."""
    return jax().export.symbolic_shape(name)[0]


def array(value: object, dtype: np.dtype[Any] | None = None) -> Traced:
    """Returns a value as an array that functions under `jit` may return."""
    return jax().numpy.asarray(value, dtype)


def mapped(function: FlatFunction) -> FlatFunction:
    """Returns a function of stacked arguments, whose results are stacked."""
    return jax().vmap(function)


def has_wide_types() -> bool:
    """Returns whether JAX computes with 64 bits in this process."""
    return bool(jax().config.jax_enable_x64)


def with_wide_types() -> contextlib.AbstractContextManager[object]:
    """Returns a context in which JAX computes with 64 bits."""
    if hasattr(jax(), "enable_x64"):
        return jax().enable_x64(True)
    return cast(Any, importlib.import_module("jax.experimental")).enable_x64(True)  # before 0.8


def results_of(function: FlatFunction, arguments: Iterable[Traced]) -> Sequence[Traced]:
    """Traces a function without exporting it, and returns descriptions of its results."""
    return jax().eval_shape(function, *arguments)


def cost_of(function: FlatFunction, arguments: Iterable[Traced]) -> tuple[float, float]:
    """Returns XLA's estimate of the floating-point operations of a function, and of the bytes that it accesses."""
    found: Any = jax().jit(function).lower(*arguments).cost_analysis()
    costs = cast("dict[str, float]", found or {})
    return costs.get("flops", 0.0), costs.get("bytes accessed", 0.0)


def exported(function: FlatFunction, arguments: Sequence[Traced], name: str) -> bytes:
    """Compiles a function for all platforms and returns it as bytes.

    Args:
      function: The function.
      arguments: Descriptions of its arguments.
      name: The name of the function in messages.

    Raises:
      InvalidComputationError: If the function has operations that cannot be exported.
    """
    error: Exception | None = None
    # Some operations exist on some platforms only.
    for platforms in (_PLATFORMS, (jax().default_backend(),)):
        try:
            return bytes(jax().export.export(jax().jit(function), platforms=platforms)(*arguments).serialize())
        except (NotImplementedError, ValueError) as failure:
            error = failure
    raise InvalidComputationError(
        f"Cannot export the JAX function {name!r}: {text_of(error or '')}; remove callbacks and debugging output, or "
        "use fedstack.python_computation, whose functions may call any Python code"
    ) from error


def _fits(shape: Sequence[object], tensor: TensorType) -> bool:
    declared = tensor.shape or ()
    return len(shape) == len(declared) and all(
        size == known if isinstance(size, int) else known is None for size, known in zip(shape, declared)
    )


_CUSTOM_CALL = re.compile(r"custom_call\s+@(?:\"([^\"]*)\"|([\w.$-]+))")
# What XLA and JAX implement themselves. Other targets may be callbacks, whose address is part of the export.
_HARMLESS = re.compile(
    r"lapack_\w+|(dynamic_)?ducc_fft|(cu|hip)(_threefry2x32(_ffi)?|_lu_pivots_to_permutation)"
    r"|(cusolver|cublas|hipsolver|hipblas)_\w+|(ApproxTopK|TopK|Eigh|Qr|LuDecomposition|Sharding)"
    r"|(mhlo|stablehlo|chlo)\.\w+|ProductOfElementaryHouseholderReflectors|annotate_device_placement"
    r"|SPMDFullToShardShape|SPMDShardToFullShape|shape_assertion"
)


class ExportedProgram:
    """An exported function that is ready to run on this process's default device.

    Args:
      content: The function as bytes; see `exported`.
      name: The name of the function in messages.

    Raises:
      CarrierError: If the bytes are no function, or this process cannot run it.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self._name = name
        found: Any = self._read(content)
        self._check_targets(found)
        backend = jax().default_backend()
        if backend not in found.platforms and not (backend == "gpu" and {"cuda", "rocm"} & set(found.platforms)):
            raise CarrierError(
                f"Expected {name!r} to be exported for the platform {backend!r} of this process, found an export for "
                f"{', '.join(found.platforms)}; export it on such a machine, or set JAX_PLATFORMS"
            )
        self._arguments, self._results = found.in_avals, found.out_avals
        self._is_wide = any(np.dtype(one.dtype).itemsize > 4 for one in (*found.in_avals, *found.out_avals))
        self._run = jax().jit(found.call, compiler_options=_OPTIONS.get(backend))

    def _read(self, content: bytes) -> Any:
        try:
            return jax().export.deserialize(bytearray(content))
        except Exception as error:  # flatbuffers and MLIR raise errors of any kind
            raise CarrierError(
                f"Expected {self._name!r} as an export of JAX, found bytes that JAX {version()} cannot read: "
                f"{text_of(error)}; use the same version of JAX in both processes"
            ) from error

    def _check_targets(self, found: Any) -> None:
        code = re.sub(r"\bloc\(.*", "", found.mlir_module())
        targets = [quoted or plain for quoted, plain in _CUSTOM_CALL.findall(code)]
        strange = [target for target in targets if not _HARMLESS.fullmatch(target)]
        if strange or len(targets) != code.count("custom_call"):
            raise CarrierError(
                f"Expected {self._name!r} to call functions of XLA only, found "
                f"{', '.join(map(repr, strange)) or 'a call that cannot be read'}; remove callbacks and kernels of "
                "your own"
            )

    def check(self, parameter: Sequence[TensorType], result: Sequence[TensorType]) -> None:
        """Checks that the function has the tensors of these types as arguments and results.

        Raises:
          CarrierError: If it has others.
        """
        for kind, found, tensors in (("take", self._arguments, parameter), ("return", self._results, result)):
            expected = [f"{tensor}" for tensor in tensors]
            fits = len(found) == len(tensors) and all(
                np.dtype(one.dtype) == tensor.dtype and _fits(one.shape, tensor) for one, tensor in zip(found, tensors)
            )
            if not fits:
                raise CarrierError(
                    f"Expected the JAX export {self._name!r} to {kind} {', '.join(expected) or 'nothing'}, found "
                    f"{', '.join(map(str, found)) or 'nothing'}; export it again"
                )

    def __call__(self, arguments: Sequence[object]) -> list[NDArray[Any]]:
        """Runs the function, and returns its results as read-only arrays, which never change."""
        if not self._is_wide:
            return [np.asarray(one) for one in self._run(*arguments)]
        with with_wide_types():
            return [np.asarray(one) for one in self._run(*arguments)]

    def __repr__(self) -> str:
        return f"<ExportedProgram of {self._name}>"
