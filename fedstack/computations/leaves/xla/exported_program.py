"""Runs functions that JAX has exported, once or in a compiled loop over several clients."""

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.leaves.xla.jax_api import (
    FlatFunction,
    Traced,
    check_process,
    cost_of,
    jax,
    shaped,
    version,
    with_wide_types,
)
from fedstack.computations.types.language import TensorType
from fedstack.errors import CarrierError
from fedstack.foundations.error_text import text_of

# For how many sizes of its arguments a program keeps compiled code.
_MOST_SIZES = 64
# An operation uses one thread, because several clients run at the same time.
_OPTIONS = {"cpu": {"xla_cpu_multi_thread_eigen": False}}


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


class ExportedProgram:
    """An exported function that is ready to run on this process's default device.

    Args:
      found: The function.
      name: The name of the function in messages.

    Raises:
      CarrierError: If this process cannot run the function.
    """

    def __init__(self, found: Export, name: str) -> None:
        self._name = name
        self._code = found.code
        self._check_targets()
        backend = jax().default_backend()
        if backend not in found.platforms and not (backend == "gpu" and {"cuda", "rocm"} & set(found.platforms)):
            raise CarrierError(
                f"Expected {name!r} to be exported for the platform {backend!r} of this process, found an export for "
                f"{', '.join(found.platforms)}; export it on such a machine, or set JAX_PLATFORMS"
            )
        self._arguments, self._results = found.arguments, found.results
        tensors = (*found.arguments, *found.results)
        self._is_wide = any(np.dtype(one.dtype).itemsize > 4 for one in tensors)
        self._is_open = any(not isinstance(size, int) for one in found.arguments for size in one.shape)
        self._sizes: set[tuple[object, ...]] = set()
        self._function: FlatFunction = found.call
        self._jit = functools.partial(jax().jit, compiler_options=_OPTIONS.get(backend))
        self._run = self._jit(self._function)
        self._loop = self._jit(self._looped, static_argnums=(0, 1))
        # On CPUs they take ten times longer in a loop.
        self.can_loop = "stablehlo.convolution" not in self._code

    def _check_targets(self) -> None:
        code = self._code
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
            expected = [str(tensor) for tensor in tensors]
            fits = len(found) == len(tensors) and all(
                np.dtype(one.dtype) == tensor.dtype and _fits(one.shape, tensor, is_result=tensors is result)
                for one, tensor in zip(found, tensors)
            )
            if not fits:
                raise CarrierError(
                    f"Expected the function {self._name!r} to {kind} {', '.join(expected) or 'nothing'}, found "
                    f"{', '.join(map(shown_array, found)) or 'nothing'}; export it again"
                )

    def cost(self) -> tuple[float, float] | None:
        """Returns XLA's estimate of operations and of accessed bytes; `None` if the function has parts without one."""
        if "stablehlo.while" in self._code or "custom_call" in self._code:
            return None
        with with_wide_types() if self._is_wide else contextlib.nullcontext():
            return cost_of(self._function, [shaped(one.shape, one.dtype) for one in self._arguments])

    def __call__(self, arguments: Sequence[object]) -> list[NDArray[Any]]:
        """Runs the function, and returns its results as read-only arrays, which never change."""
        if self._is_open:
            self._note_sizes(arguments)
        return self._called(lambda: self._run(*arguments))

    def _note_sizes(self, arguments: Sequence[object]) -> None:
        """Forgets what was compiled after many sizes, since code for each takes a megabyte or two."""
        sizes = tuple(np.shape(cast(Any, one))[:1] for one in arguments)
        if sizes not in self._sizes and len(self._sizes) >= _MOST_SIZES:
            self._sizes.clear()
            self._run.clear_cache()
        self._sizes.add(sizes)

    def loop(
        self, lanes: int, shared: tuple[bool, ...], clients: int, arguments: Sequence[object]
    ) -> list[NDArray[Any]]:
        """Runs the function for several clients, one after the other. No client depends on the others.

        Args:
          lanes: The maximum number of clients, for which memory is allocated.
          shared: For each argument, whether it is the same for all clients. If not, its first axis is that of clients.
          clients: The number of clients.
          arguments: The arguments.

        Returns:
          The results, with the clients along a first axis. Rows beyond the clients are zeros.
        """
        return self._called(lambda: self._loop(lanes, shared, np.int32(clients), *arguments))

    def _looped(self, lanes: int, shared: tuple[bool, ...], clients: Traced, *arguments: Traced) -> Sequence[Traced]:
        lax, numpy = jax().lax, jax().numpy

        def client(lane: Traced, rows: Sequence[Traced]) -> Sequence[Traced]:
            own = [
                argument if is_shared else lax.dynamic_index_in_dim(argument, lane, keepdims=False)
                for argument, is_shared in zip(arguments, shared)
            ]
            # What XLA moves out of the loop, it would compile in another way than for arguments that are not shared.
            lane, own = lax.optimization_barrier((lane, own))
            found = zip(rows, self._function(*own))
            return [lax.dynamic_update_index_in_dim(into, one, lane, 0) for into, one in found]

        empty = [numpy.zeros((lanes, *one.shape), one.dtype) for one in self._results]
        return lax.fori_loop(0, clients, client, empty)

    def _called(self, call: Callable[[], Sequence[Traced]]) -> list[NDArray[Any]]:
        check_process()
        if not self._is_wide:
            return [np.asarray(one) for one in call()]
        with with_wide_types():
            return [np.asarray(one) for one in call()]

    def __repr__(self) -> str:
        return f"<ExportedProgram of {self._name}>"
