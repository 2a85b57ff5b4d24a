"""Wraps JAX, which is optional and takes a while to import. No other module imports it.

Some versions of JAX return wrong results on CPUs without any error, so they are refused:

| versions | wrong results of | issue of JAX |
| --- | --- | --- |
| 0.5.3 to 0.8.1 | constants that a function under `vmap` captures | 33479 |
| 0.10.2 | products of matrices and vectors under `vmap` that are summed | 39103 |
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import itertools
import logging
import os
import platform
import re
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, TypeAlias, cast

import numpy as np

from fedstack.computations.leaves.compilations import compilations
from fedstack.errors import CarrierError, ClosedError, InvalidComputationError
from fedstack.foundations.error_text import text_of
from fedstack.foundations.traceback_filter import without_frames_in

# What JAX passes to functions that it traces, and the arrays that it returns. JAX's types are not public.
Traced: TypeAlias = Any
FlatFunction: TypeAlias = Callable[..., Sequence[Traced]]
Version: TypeAlias = tuple[int, ...]

_OLDEST: Version = (0, 5)
_WRONG: tuple[tuple[Version, Version], ...] = (((0, 5, 3), (0, 8, 1)), ((0, 10, 2), (0, 10, 2)))
_ADVICE = 'install a version that computes correctly: pip install "fedstack[jax]"'
# Exports contain code for all of them, so that workers may have other devices than the process that exports.
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# The element types of the language's tensors, as text of MLIR.
_ELEMENTS = {
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bf16": "bfloat16",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+|complex<\w+>)>")
# Flags of XLA on which no results depend.
_SAME_BITS = ("--xla_dump", "--xla_force_host_platform_device_count=")
_logger = logging.getLogger(__name__)
# The process that has imported JAX.
_process: list[int] = []
# Two threads may import JAX at the same time, and what they compile is counted once.
_imports = itertools.count()


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
    if next(_imports) == 0:
        found.monitoring.register_event_listener(_note_event)
        found.monitoring.register_event_duration_secs_listener(_note_duration)
    _process[:] = [os.getpid()]
    return found


class _CacheHit(threading.local):
    """What this thread has found in a cache.

    Attributes:
      is_cached: Whether the compiled code of its function was found in JAX's cache on disk.
    """

    is_cached: bool = False


_cache_hit = _CacheHit()


def _note_event(event: str, **_: object) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _cache_hit.is_cached = True


def _note_duration(event: str, seconds: float, **_: object) -> None:
    if event == "/jax/core/compile/jaxpr_to_mlir_module_duration" and compilations.function:
        compilations.begin()
    elif event == "/jax/core/compile/backend_compile_duration":
        if name := compilations.function:
            compilations.note(name, seconds, from_cache=_cache_hit.is_cached)
            compilations.end()
        _cache_hit.is_cached = False


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


@functools.cache
def one_thread_device() -> Any:
    """Returns a CPU that runs each operation on one thread; `None` if JAX's default is no CPU, or JAX cannot make one.

    On JAX's own CPU, an operation uses as many threads as there are cores. XLA then sums the terms of some products of
    matrices in another order on a machine with more cores (with jaxlib 0.10.1, those of the gradients of dense layers),
    and no option of the compiler prevents this. Also, the threads of several processes would compete for the cores. The
    CPU belongs to a client of its own, so that JAX runs other functions of this process as before.
    """
    if jax().default_backend() != "cpu":
        return None
    try:
        make: Any = cast(Any, importlib.import_module("jaxlib.xla_client")).make_cpu_client
        with _setting("PJRT_NPROC", "1"):  # XLA reads it when a client is made
            return make(asynchronous=False).devices()[0]
    except (AttributeError, ImportError, TypeError) as error:
        found = (
            "JAX %s cannot run operations on one thread (%s): on CPUs with other numbers of cores, results may differ"
        )
        _logger.warning(found, version(), text_of(error))
        return None


@contextlib.contextmanager
def _setting(name: str, value: str) -> Generator[None, None, None]:
    """Sets an environment variable during the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@functools.cache
def fingerprint() -> bytes:
    """Returns a digest of what the bits of results depend on: jaxlib, the flags of XLA, the device, the processor."""
    instructions = platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = {line.partition(":")[0].strip(): line.partition(":")[2] for line in file}
        instructions = lines.get("flags") or lines.get("Features") or instructions  # the latter on ARM
    device = jax().devices()[0]
    flags = sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_SAME_BITS))
    threads = os.cpu_count() if device.platform == "cpu" and one_thread_device() is None else 1
    kind = device.platform, device.device_kind, platform.machine(), instructions, threads
    facts = (metadata.version("jaxlib"), *kind, flags)
    return hashlib.sha256(repr(facts).encode()).digest()


def needs_values() -> tuple[type[Exception], ...]:
    """Returns the errors of functions that use the values of arrays while they are traced."""
    errors = jax().errors
    return (
        errors.ConcretizationTypeError,
        errors.NonConcreteBooleanIndexError,
        errors.TracerArrayConversionError,
        errors.TracerIntegerConversionError,
    )


def without_frames(error: BaseException) -> None:
    """Removes the frames of JAX itself from the traceback of an error, as JAX does, and what JAX says about that."""
    notes: list[str] = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if "JAX has removed its internal frames" not in note]
    error.__traceback__ = without_frames_in(os.path.dirname(jax().__file__), error.__traceback__)


def is_tracing(arguments: object) -> bool:
    """Returns whether JAX traces the caller of a function, or the arguments of the call contain tracers."""
    if any(isinstance(leaf, jax().core.Tracer) for leaf in jax().tree_util.tree_leaves(arguments)):
        return True
    return not importlib.import_module("jax._src.core").trace_state_clean()


def check_process() -> None:
    """Checks that this process was not forked after JAX was imported.

    Raises:
      ClosedError: If it was. JAX would wait forever for threads that only the parent has.
    """
    if os.getpid() != _process[0]:
        raise ClosedError(
            "JAX does not work in a process that was forked after JAX was imported; start processes with the method "
            '"spawn" or "forkserver" of multiprocessing'
        )


def shaped(shape: Sequence[object], dtype: np.dtype[Any]) -> Traced:
    """Returns a description of an array, whose sizes are numbers or symbols."""
    return jax().ShapeDtypeStruct(tuple(shape), dtype)


def is_description(value: object) -> bool:
    """Returns whether a value describes an array, as those that `jax.eval_shape` returns do."""
    return isinstance(value, jax().ShapeDtypeStruct)


def needs_sizes(error: Exception) -> bool:
    """Returns whether an error was raised because a function used a size that is not known as a number."""
    return "_DimExpr" in str(error) or "InconclusiveDimension" in type(error).__name__


def symbols(names: Sequence[str]) -> Mapping[str, Traced]:
    """Returns symbols for unknown sizes, by their names."""
    return dict(zip(names, jax().export.symbolic_shape(",".join(names)))) if names else {}


def array(value: object, dtype: np.dtype[Any] | None = None) -> Traced:
    """Returns a value as an array that functions under `jit` may return."""
    return jax().numpy.asarray(value, dtype)


def mapped(function: FlatFunction) -> FlatFunction:
    """Returns a function of stacked arguments, whose results are stacked."""
    return jax().vmap(function)


def folded(step: Callable[[Traced, Any], Any], state: Any, length: Traced) -> Any:
    """Returns the last of the states that a function makes, given the index of a step and a state."""
    return jax().lax.fori_loop(0, length, step, jax().tree_util.tree_map(array, state))


def row_of(rows: Traced, index: Traced) -> Traced:
    """Returns a row of an array."""
    return jax().lax.dynamic_index_in_dim(rows, index, keepdims=False)


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
        except Exception as failure:  # of any kind, such as a TypeError for a callback
            error = failure
    raise InvalidComputationError(
        f"Cannot export the JAX function {name!r}: {text_of(error or '')}; remove callbacks and debugging output, or "
        "use fedstack.python_computation, whose functions may call any Python code"
    ) from error


def hlo_of(function: FlatFunction, arguments: Iterable[Traced], name: str) -> bytes:
    """Returns a function as a serialized HLO module for this process's default device.

    Args:
      function: The function.
      arguments: Descriptions of its arguments, all of which are parameters of the module.
      name: The name of the function.

    Raises:
      CarrierError: If the installed version of JAX cannot do this.
    """

    def run(*arguments: Traced) -> Sequence[Traced]:
        return function(*arguments)

    run.__name__ = name
    with _converting(), with_wide_types():
        lowered = jax().jit(run, keep_unused=True).lower(*[shaped(one.shape, one.dtype) for one in arguments])
        return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


def read_hlo(content: bytes) -> Any:
    """Returns a serialized HLO module as JAX would return an exported function that has been deserialized.

    Raises:
      CarrierError: If the installed version of JAX cannot convert modules, or a module has other than arrays of known
        sizes and of the language's types as parameters and results. If the bytes are no module, the error is of any
        kind.
    """
    with _converting():
        xla_client = importlib.import_module("jaxlib.xla_client")
        convert: Any = xla_client._xla.mlir
        stablehlo = importlib.import_module("jaxlib.mlir.dialects.stablehlo")
        ir: Any = importlib.import_module("jaxlib.mlir.ir")
        if hasattr(convert, "hlo_to_stablehlo"):
            module: bytes = convert.hlo_to_stablehlo(content)
        else:  # before 0.8
            module = convert.xla_computation_to_mlir_module(xla_client.XlaComputation(content)).encode()
        module = convert.mhlo_to_stablehlo(module)
        portable = stablehlo.serialize_portable_artifact_str(module, stablehlo.get_current_version())
        with importlib.import_module("jax.interpreters.mlir").make_ir_context():
            operation: Any = ir.Module.parse(module).operation
            main: Any = ir.SymbolTable(operation)["main"].type
            arguments, results = ([str(one) for one in types] for types in (main.inputs, main.results))
            name = ir.StringAttr(operation.attributes["sym_name"]).value
        # What JAX says about a function of the same types, but with this code.
        with with_wide_types():
            like = [_described(one) for one in results]

            def zeros(*_: Traced) -> Sequence[Traced]:
                return [jax().numpy.zeros(one.shape, one.dtype) for one in like]

            export = jax().export.export(jax().jit(zeros, keep_unused=True))
            found = export(*[_described(one) for one in arguments])
        return dataclasses.replace(found, fun_name=name, mlir_module_serialized=portable)


def _described(tensor: str) -> Traced:
    match = _TENSOR.fullmatch(tensor)
    if match is None or match[2] not in _ELEMENTS:
        raise CarrierError(
            "Expected arrays of known sizes and of the language's types as parameters and results of an HLO module, "
            f"found {tensor}; declare all sizes, and use other types"
        )
    return shaped([int(size) for size in match[1].split("x")[:-1]], jax().numpy.dtype(_ELEMENTS[match[2]]))


@contextlib.contextmanager
def _converting() -> Generator[None, None, None]:
    """Tells errors about names that JAX does not promise from errors about what is converted."""
    try:
        yield
    except (AttributeError, ImportError, TypeError) as error:
        raise CarrierError(
            f"Expected a version of JAX that converts HLO modules, found {version()} ({text_of(error)}); "
            'install another one: pip install "fedstack[jax]"'
        ) from error
