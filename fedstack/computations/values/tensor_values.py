"""Converts users' values to payloads of tensor types, or raises errors that explain the mismatch.

The rules are those of the language. The kind of number must be the same. A NumPy value must be safely castable (int32
to int64, but not float64 to float32), and a Python number must be representable (3.0 as float32, 3 as uint8, but not
300 as uint8). Payloads are NumPy scalars or read-only arrays of exactly the declared dtype; strings are `bytes`.
"""

import contextvars
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import repeat
from typing import Any, NoReturn, cast

import numpy as np

from fedstack.computations.types.language import TensorType, Type
from fedstack.computations.types.type_sizes import type_text
from fedstack.computations.types.type_structure import is_scalar, is_string, shape_fits
from fedstack.errors import InvalidValueError, TypeMismatchError
from fedstack.foundations.value_text import describe, shorten

# A function that converts a value to the payload of a tensor type, such as `normalize_tensor`.
ReadTensor = Callable[[object, TensorType, str], object]

_MAX_RANK = 64
_PYTHON_KINDS: dict[type, str] = {bool: "b", int: "i", float: "f", complex: "c", str: "S", bytes: "S"}

_INTEGER_TYPES = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
# The advice for a result of a function that is `None`.
NO_RETURN = "a function without a return statement returns None"
_INTEGERS = {kind: range(int(np.iinfo(kind).min), int(np.iinfo(kind).max) + 1) for kind in _INTEGER_TYPES}

_IGNORING = contextvars.Context()  # NumPy keeps its error settings in a context variable
_IGNORING.run(np.seterr, all="ignore")


def kind_of_dtype(dtype: np.dtype) -> str:
    """Returns the kind of a dtype: b, i (signed or unsigned), f (including bfloat16), c, S, or ? for other dtypes."""
    kind = dtype.kind
    if kind in "iu":
        return "i"
    if kind in "SUO":
        return "S"
    if kind == "V":
        return "f" if dtype.name == "bfloat16" else "?"
    return kind if kind in "bfc" else "?"


def mismatch(expected: object, found: object, path: str, advice: str = "") -> NoReturn:
    """Raises a TypeMismatchError that names what was expected and found. Types are formatted by `type_text`."""
    shown, seen = (type_text(what) if isinstance(what, Type) else what for what in (expected, found))
    raise TypeMismatchError(f"Expected {shown}, found {seen}; at {path}" + (f"; {advice}" if advice else ""))


def normalize_tensor(value: object, tensor: TensorType, path: str) -> object:
    """Returns the payload of a value for a tensor type.

    Args:
      value: A NumPy scalar or array, a Python scalar, a string, nested lists of these values, or an object with
        `__array__`.
      tensor: The expected type. Dimensions of `None` match any size.
      path: The path of the value, for error messages.

    Raises:
      TypeMismatchError: If the dtype or the shape does not match.
    """
    kind = tensor.dtype.type
    if kind is np.str_:
        return _normalize_string(value, tensor, path)
    if is_scalar(tensor):
        if type(value) is kind:
            return value
        # These shortcuts return the same results as the code below in a tenth of the time.
        if type(value) is int and (some := _INTEGERS.get(kind)) is not None and value in some:
            return kind(value)
        if type(value) is float and kind is np.float64:
            return np.float64(value)
    _check_unmasked(value, tensor, path)
    if isinstance(value, np.ndarray):
        # The payload is a plain array, because subclasses such as np.matrix have different operators.
        array = _cast_array(np.asarray(cast(np.ndarray, value)), tensor, path)
    elif isinstance(value, np.generic):
        array = _cast_array(np.asarray(cast(np.generic, value)), tensor, path)
    elif isinstance(value, (bool, int, float, complex)):
        array = _cast_python(np.asarray(_checked_kind(value, tensor, path)), [value], tensor, path)
    elif isinstance(value, (list, tuple)):
        array = _array_from_nest(cast("Sequence[object]", value), tensor, path)
    elif hasattr(value, "__array__") and not isinstance(value, type):
        array = _cast_array(_converted(value, tensor, path), tensor, path)
    else:
        mismatch(tensor, describe(value), path, _advice(value, path))
    _check_shape(array.shape, tensor, path)
    return array[()] if array.ndim == 0 else read_only(array)


def _converted(value: object, tensor: TensorType, path: str) -> np.ndarray:
    check_nothing_missing(value, path)
    try:
        return np.asarray(_on_host(value))
    except Exception as error:
        kind = type(value)
        if kind.__module__.partition(".")[0] == "jax" and kind.__name__.endswith("Tracer"):
            raise TypeMismatchError(
                f"Expected {tensor}, found a JAX {kind.__name__}; at {path}; call jax.jit, jax.grad and jax.vmap "
                "inside the decorated function, not on the computation, or decorate it with fedstack.jax_computation"
            ) from None
        shown = f"{kind.__name__}, whose conversion to an array raised {type(error).__name__}: {error}"
        raise TypeMismatchError(f"Expected {tensor}, found {shown}; at {path}") from error


def _on_host(value: object) -> object:
    """Returns a tensor of PyTorch in a form that NumPy reads: without gradient, in the memory of the host.

    PyTorch is not imported for this: its tensors are recognized by their methods. Other values are returned unchanged.
    """
    kind = type(value)
    if not (hasattr(kind, "detach") and hasattr(kind, "cpu")):
        return value
    tensor = cast(Any, value).detach().cpu()
    # NumPy cannot read PyTorch's bfloat16, but each of its values is exact in 32 bits.
    return np.asarray(tensor.float()).astype("bfloat16") if str(tensor.dtype) == "torch.bfloat16" else tensor


_set_writeable = cast("Callable[[np.ndarray, bool], None]", np.ndarray.setflags)


def read_only(array: np.ndarray) -> np.ndarray:
    """Returns the array itself if it is read-only, or else a read-only view. The owner's array stays writable."""
    if array.flags.writeable:
        array = array.view()
        _set_writeable(array, False)  # by far the fastest way, which matters for one view per client
    return array


def is_plain(array: np.ndarray) -> bool:
    """Returns whether an array has the layout of received arrays. NumPy may round in another way for other layouts."""
    flags = array.flags
    return flags.c_contiguous and flags.aligned


def all_read_only(arrays: Sequence[np.ndarray]) -> list[object]:
    """Returns the results of `read_only` for many arrays, faster than one by one."""
    found: list[object] = [array.view() if array.flags.writeable else array for array in arrays]
    deque(map(_set_writeable, cast("list[np.ndarray]", found), repeat(False)), maxlen=0)
    return found


def _advice(value: object, path: str) -> str:
    if value is None and path.startswith("the result"):
        return NO_RETURN
    if isinstance(value, (str, bytes)):
        return "convert the text to a number first"
    if isinstance(value, Generator):
        return "write return in place of yield, or collect what is yielded in an array"
    return ""


def _check_shape(shape: tuple[int, ...], tensor: TensorType, path: str) -> None:
    declared = tensor.shape
    if declared is None or shape_fits(shape, declared):
        return
    advice, kind = "", "str" if is_string(tensor) else tensor.dtype.name
    if shape and shape_fits(shape[1:], declared):
        in_list = shape[0] == 1 and "[client" not in path
        advice = "pass the value without the list around it, or " if in_list else ""
        advice += f"declare ({kind}, {[None, *declared]}) for batches"
    elif shape and declared and shape_fits(shape[1:], declared[1:]):
        advice = f"declare ({kind}, {[None, *declared[1:]]}) if the number of rows varies"
    mismatch(f"shape {_show_shape(declared)} of {tensor}", f"shape {_show_shape(shape)}", path, advice)


def _show_shape(shape: Sequence[int | None]) -> str:
    return "[" + ",".join("?" if size is None else str(size) for size in shape) + "]"


def _cast_array(array: np.ndarray, tensor: TensorType, path: str) -> np.ndarray:
    dtype = tensor.dtype
    if array.dtype == dtype:
        # NumPy also compares byte orders, so the array is in native order.
        return array
    if array.dtype.kind == "O":
        mismatch(tensor, f"an array of Python objects {list(array.shape)}", path, "convert it to a numeric dtype")
    if kind_of_dtype(array.dtype) != kind_of_dtype(dtype) or not np.can_cast(array.dtype, dtype):
        shown = describe(array[()] if array.ndim == 0 else array)
        module = "ml_dtypes" if dtype.name == "bfloat16" else "np"
        mismatch(tensor, shown, path, f"convert it with .astype({module}.{dtype.name}) if this is intended")
    return array.astype(dtype)


def _checked_kind(value: object, tensor: TensorType, path: str) -> object:
    expected, found = kind_of_dtype(tensor.dtype), _PYTHON_KINDS[_python_kind(value)]
    if expected != found:
        advice = ""
        if (found, expected) == ("i", "f"):
            advice = f"write {shorten(value)}.0 for a floating-point number"
        elif found in "if" and expected == "c":
            advice = f"write complex({shorten(value)}) for a complex number"
        mismatch(tensor, describe(value), path, advice)
    return value


def _python_kind(value: object) -> type:
    return next(kind for kind in _PYTHON_KINDS if isinstance(value, kind))


def _cast_python(array: np.ndarray, leaves: Sequence[object], tensor: TensorType, path: str) -> np.ndarray:
    """Casts Python numbers, each of which must be representable rather than just castable."""
    dtype = tensor.dtype
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        integers = cast("Sequence[int]", leaves)
        if integers and not (info.min <= min(integers) and max(integers) <= info.max):
            worst = min(integers) if min(integers) < info.min else max(integers)
            mismatch(f"{tensor}, from {info.min} to {info.max}", f"int {shorten(worst)}", path)
        return array.astype(dtype)
    result = quiet_context().run(array.astype, dtype)
    if kind_of_dtype(dtype) in "fc" and not np.array_equal(
        np.isfinite(result.astype(np.complex128)), np.isfinite(array)
    ):
        mismatch(
            f"a value in the range of {tensor}", f"{shorten(leaves[0] if len(leaves) == 1 else list(leaves))}", path
        )
    return result


def _nest_leaves(nest: Sequence[object], depth: int = 1) -> Iterator[object]:
    if depth > _MAX_RANK:
        raise ValueError(f"NumPy arrays have at most {_MAX_RANK} dimensions")
    for item in nest:
        if isinstance(item, (list, tuple)):
            yield from _nest_leaves(cast("Sequence[object]", item), depth + 1)
        else:
            yield item


def _array_from_nest(nest: Sequence[object], tensor: TensorType, path: str) -> np.ndarray:
    try:
        leaves = list(_nest_leaves(nest))
    except (TypeError, ValueError) as error:
        raise TypeMismatchError(
            f"Expected {tensor}, found a list that cannot become an array; at {path}; {error}"
        ) from error
    kinds = set(map(type, leaves))
    try:
        if not leaves:
            return np.array(nest, tensor.dtype)
        if kinds <= {bool} or kinds <= {int} or kinds <= {float} or kinds <= {complex}:
            _checked_kind(leaves[0], tensor, path)
            wide = np.array(nest, np.object_ if kinds == {int} else None)
            return _cast_python(wide, leaves, tensor, path)
        if any(issubclass(kind, (np.generic, np.ndarray)) for kind in kinds):
            if len(kinds) > 1 or len({cast(np.ndarray, leaf).dtype for leaf in leaves}) > 1:
                # NumPy would promote the elements to a dtype that may be unable to represent any of them.
                return np.array(_cast_leaves(nest, tensor, path), tensor.dtype)
            for leaf in leaves:
                _check_unmasked(leaf, tensor, path)
            return _cast_array(np.array(nest), tensor, path)
    except TypeMismatchError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise _ragged(tensor, path) from error
    names = sorted(kind.__name__ for kind in kinds)
    numbers = all(issubclass(kind, (bool, int, float, complex)) for kind in kinds)
    mismatch(tensor, f"a list of {', '.join(names)}", path, "use one kind of number throughout" if numbers else "")


def _ragged(tensor: TensorType, path: str) -> TypeMismatchError:
    """Returns the error for ragged lists. NumPy's own error message would refer to NumPy's functions."""
    return TypeMismatchError(f"Expected {tensor}, found a ragged list; at {path}; use rows of the same shape")


def _cast_leaves(nest: Sequence[object], tensor: TensorType, path: str) -> list[object]:
    """Casts the numbers and arrays in nested lists, each according to the rule for its kind."""
    return [
        _cast_leaves(cast("Sequence[object]", item), tensor, path)
        if isinstance(item, (list, tuple))
        else _cast_leaf(item, tensor, path)
        for item in nest
    ]


def _cast_leaf(leaf: object, tensor: TensorType, path: str) -> np.ndarray:
    _check_unmasked(leaf, tensor, path)
    if isinstance(leaf, (np.generic, np.ndarray)):
        return _cast_array(np.asarray(cast(np.ndarray, leaf)), tensor, path)
    if type(leaf) not in _PYTHON_KINDS:
        mismatch(tensor, describe(leaf), path)
    _checked_kind(leaf, tensor, path)
    return _cast_python(np.array(leaf, np.object_ if type(leaf) is int else None), [leaf], tensor, path)


def _check_unmasked(value: object, tensor: TensorType, path: str) -> None:
    if isinstance(value, np.ma.MaskedArray):
        mismatch(tensor, "a masked array", path, "fill in the masked elements with value.filled(…)")


def to_bytes(value: object, path: str) -> bytes:
    """Returns the payload of one string.

    Raises:
      TypeMismatchError: If `value` is neither `str` (encoded as UTF-8) nor `bytes`.
    """
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TypeMismatchError(
                f"Expected text that UTF-8 can encode, found {describe(value)} ({error.reason}); at {path}; pass bytes"
            ) from error
    if isinstance(value, bytes):
        return bytes(value)
    return mismatch("a string", describe(value), path)


def _normalize_string(value: object, tensor: TensorType, path: str) -> object:
    if hasattr(value, "__array__") and not isinstance(value, (str, bytes, type)):
        array = _converted(value, tensor, path)
        if kind_of_dtype(array.dtype) != "S":
            mismatch(tensor, describe(array), path)
        shape, flat = array.shape, list(array.ravel())
    elif isinstance(value, (list, tuple)):
        try:
            nest = np.array(value, np.object_) if value else np.empty((0,), np.object_)
        except ValueError as error:  # unlike lists, NumPy rejects arrays of different shapes
            raise _ragged(tensor, path) from error
        shape, flat = nest.shape, list(nest.ravel())
    elif is_scalar(tensor) or isinstance(value, (str, bytes)):
        shape, flat = (), [value]
    else:
        mismatch(tensor, describe(value), path)
    _check_shape(shape, tensor, path)
    strings = [to_bytes(item, path) for item in flat]
    if shape == ():
        return strings[0]
    result = np.empty(len(strings), np.object_)
    result[:] = strings
    result = result.reshape(shape)
    result.flags.writeable = False
    return result


def check_nothing_missing(value: Any, path: str) -> None:
    """Checks that a nullable column has no missing values.

    NumPy would convert missing values to NaN, and integers in the same column to floats. Columns of NumPy's own dtypes
    have no missing values: NaN in such a column is an ordinary float.

    Args:
      value: The value that is to be converted to an array.
      path: The path of the value, for error messages.

    Raises:
      InvalidValueError: If a value is missing.
    """
    missing = getattr(value, "isna", None) or getattr(value, "is_null", None)  # of pandas and Arrow, respectively
    dtype = getattr(value, "dtype", None) or getattr(value, "type", None)  # pyarrow columns have `type`
    if not callable(missing) or dtype is None or isinstance(dtype, np.dtype):
        return
    rows = np.flatnonzero(np.asarray(missing(), np.bool_))
    if len(rows):
        fill = "fill_null" if hasattr(value, "is_null") else "fillna"
        raise InvalidValueError(
            f"Expected a value in every row of a column of {dtype}, found no value in row {rows[0]} ({len(rows)} "
            f"missing); at {path}; drop these rows, or fill in the missing values with {fill}(…)"
        )


def quiet_context() -> contextvars.Context:
    """Returns a context in which NumPy does not warn about overflows and similar events: payloads follow IEEE 754.

    Running code in this context takes a quarter of the time of `np.errstate`. No other context variables are set in the
    context, so users' code must not run in it.
    """
    return _IGNORING.copy()
