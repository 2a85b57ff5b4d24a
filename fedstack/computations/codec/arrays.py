"""Converts scalars and arrays to the language's `Array` message and back.

Scalars are NumPy scalars, and arrays are `np.ndarray`s, of exactly the dtype. Strings are `bytes`, and arrays of
strings are object arrays of `bytes`. The message has two encodings: a *list* field for each dtype contains the elements
one by one, and `content` contains the raw bytes, little-endian and in C order. This module reads both encodings. It
writes scalars and strings as lists, and other arrays as `content`, because some peers read only these combinations.

Messages from peers are not trusted: sizes are checked before memory is allocated, and errors name the invalid value.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import attrs
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fedstack.computations.types.language import array_pb2, data_type_pb2
from fedstack.computations.types.type_structure import shape_fits
from fedstack.errors import InvalidValueError, TypeMismatchError

ArrayPayload: TypeAlias = "np.generic | NDArray[Any] | bytes"
Shape: TypeAlias = "Sequence[int | None] | None"

# NumPy's own limit. It also bounds the product of the dimensions in a malicious message.
_MAX_RANK = 64


@attrs.frozen
class _Encoding:
    """The encoding of one dtype.

    Attributes:
      dtype: The dtype of the payload.
      number: The number of the dtype in the message.
      list_field: The name of the list field for the dtype.
      word: The dtype that the list represents, such as uint16 for a half, or float32 for each part of a complex64.
      entry: The dtype of the list field. It is wider than `word` if protobuf has no type as narrow as `word`.
      plain: The class of a scalar that is written as a single entry without conversion; `None` if the dtype requires a
        conversion.
    """

    dtype: np.dtype[Any]
    number: data_type_pb2.DataType
    list_field: str
    word: np.dtype[Any]
    entry: np.dtype[Any]
    plain: type[np.generic] | None

    @property
    def entries_per_element(self) -> int:
        return 2 if self.dtype.kind == "c" else 1


def _encoding(dtype: type[np.generic], number: data_type_pb2.DataType, name: str, word: Any, entry: Any) -> _Encoding:
    plain = dtype if dtype is word is entry else None
    return _Encoding(np.dtype(dtype), number, name, np.dtype(word), np.dtype(entry), plain)


_ENCODINGS = (
    _encoding(np.bool_, data_type_pb2.DT_BOOL, "bool_list", np.bool_, np.bool_),
    _encoding(np.int8, data_type_pb2.DT_INT8, "int8_list", np.int8, np.int32),
    _encoding(np.int16, data_type_pb2.DT_INT16, "int16_list", np.int16, np.int32),
    _encoding(np.int32, data_type_pb2.DT_INT32, "int32_list", np.int32, np.int32),
    _encoding(np.int64, data_type_pb2.DT_INT64, "int64_list", np.int64, np.int64),
    _encoding(np.uint8, data_type_pb2.DT_UINT8, "uint8_list", np.uint8, np.int32),
    _encoding(np.uint16, data_type_pb2.DT_UINT16, "uint16_list", np.uint16, np.int32),
    _encoding(np.uint32, data_type_pb2.DT_UINT32, "uint32_list", np.uint32, np.uint32),
    _encoding(np.uint64, data_type_pb2.DT_UINT64, "uint64_list", np.uint64, np.uint64),
    _encoding(np.float16, data_type_pb2.DT_HALF, "float16_list", np.uint16, np.int32),
    _encoding(ml_dtypes.bfloat16, data_type_pb2.DT_BFLOAT16, "bfloat16_list", np.uint16, np.int32),
    _encoding(np.float32, data_type_pb2.DT_FLOAT, "float32_list", np.float32, np.float32),
    _encoding(np.float64, data_type_pb2.DT_DOUBLE, "float64_list", np.float64, np.float64),
    _encoding(np.complex64, data_type_pb2.DT_COMPLEX64, "complex64_list", np.float32, np.float32),
    _encoding(np.complex128, data_type_pb2.DT_COMPLEX128, "complex128_list", np.float64, np.float64),
    _encoding(np.str_, data_type_pb2.DT_STRING, "string_list", np.object_, np.object_),
)
_BY_TYPE = {encoding.dtype.type: encoding for encoding in _ENCODINGS}
_BY_NUMBER = {int(encoding.number): encoding for encoding in _ENCODINGS}
_STRING = _BY_TYPE[np.str_]
_OBJECT = np.dtype(np.object_)


def array_to_proto(
    payload: object, dtype: np.dtype[Any], shape: Shape = None, *, path: str = "value", as_list: bool = False
) -> array_pb2.Array:
    """Encodes a scalar or an array.

    Args:
      payload: A NumPy scalar or an array of exactly `dtype`. Strings are `bytes` or an object array of `bytes`.
      dtype: One of the 16 dtypes of the language. The dtype of strings is `np.dtype(np.str_)`.
      shape: The required shape. A dimension of `None` allows any size, and `None` instead of a shape allows any rank.
      path: The path of the payload, for error messages.
      as_list: Whether to write all arrays as lists, as literals require.

    Returns:
      A new message, with a list field for scalars and strings, and with `content` for other arrays.

    Raises:
      TypeMismatchError: If the payload has another dtype or shape.
    """
    proto = array_pb2.Array()
    write_array(proto, payload, dtype, shape, path=path, as_list=as_list)
    return proto


def write_array(
    proto: array_pb2.Array,
    payload: Any,
    dtype: np.dtype[Any],
    shape: Shape = None,
    *,
    path: str = "value",
    as_list: bool = False,
) -> None:
    """Encodes a scalar or an array into an existing empty message.

    Passing a field of an outer message avoids copying the bytes into the outer message. For the other arguments and the
    errors, see `array_to_proto`.
    """
    encoding = _encoding_of(dtype, path)
    if encoding is _STRING:
        _write_strings(proto, payload, shape, path)
        return
    if type(payload) is encoding.plain and not shape and shape is not None:
        # A shortcut for plain scalars, of which small messages consist. It takes a quarter of the time.
        proto.dtype = encoding.number
        proto.shape.SetInParent()
        getattr(proto, encoding.list_field).value.append(payload.item())
        return
    array = _as_array(payload)
    if array is None or array.dtype != encoding.dtype:
        raise _mismatch(encoding.dtype, shape, payload, path, f"convert the value to {encoding.dtype} first")
    if not shape_fits(array.shape, shape):
        raise _mismatch(encoding.dtype, shape, payload, path, "reshape the value to match its type")
    proto.dtype = encoding.number
    proto.shape.dim.extend(array.shape)
    if array.ndim == 0 or as_list:
        words = _view(np.ascontiguousarray(array).reshape(-1), encoding.word)
        _list_of(proto, encoding.list_field).extend(words.tolist())
        getattr(proto, encoding.list_field).SetInParent()  # sets the field even if the array is empty
    else:
        proto.content = _little_endian(array).tobytes()


def array_from_proto(
    proto: array_pb2.Array,
    dtype: np.dtype[Any] | None = None,
    shape: Shape = None,
    *,
    path: str = "value",
) -> ArrayPayload:
    """Decodes a scalar or an array from either encoding.

    Args:
      proto: The message. If the message contains both encodings, `content` takes precedence.
      dtype: The required dtype; `None` allows any dtype.
      shape: The required shape. A dimension of `None` allows any size, and `None` instead of a shape allows any rank.
      path: The path of the value, for error messages.

    Returns:
      A NumPy scalar, or a read-only array in C order. Strings are returned as `bytes` or a read-only object array of
      `bytes`. An array from `content` is a view of protobuf's bytes, not a copy.

    Raises:
      TypeMismatchError: If the message has another dtype or shape.
      InvalidValueError: If the message is inconsistent or incomplete.
    """
    encoding = _BY_NUMBER.get(proto.dtype)
    if shape == () and dtype is not None and encoding is not None and dtype.type is encoding.plain:
        scalar = _plain_scalar(proto, encoding.list_field, dtype.type)
        if scalar is not None:
            return scalar
    if encoding is None:
        raise InvalidValueError(
            f"Expected one of the language's 16 dtype numbers at {path}, found {proto.dtype}; send the number of a "
            "valid dtype"
        )
    dims = read_dims(proto.shape.dim, path, unknown_rank=proto.shape.unknown_rank)
    if (dtype is not None and dtype.type is not encoding.dtype.type) or not shape_fits(dims, shape):
        expected = _notation(encoding.dtype if dtype is None else dtype, shape)
        raise TypeMismatchError(
            f"Expected {expected}, found {_notation(encoding.dtype, dims)}; at {path}; send a value of the expected "
            "type"
        )
    if proto.HasField("content"):
        flat = _read_content(proto, encoding, dims, path)
    else:
        flat = _read_list(proto, encoding, dims, path)
    if not dims:
        return cast(ArrayPayload, flat[0])
    try:
        array = flat.reshape(dims)
    except ValueError as error:
        # Only shapes without elements can fail. NumPy does not support some of these, such as (2**40, 2**40, 0).
        raise InvalidValueError(
            f"Expected a shape that NumPy supports, found {_notation(encoding.dtype, dims)}; at {path}; "
            "use smaller dimensions"
        ) from error
    array.flags.writeable = False
    return array


def _plain_scalar(proto: array_pb2.Array, field: str, kind: type[Any]) -> np.generic | None:
    """Decodes a scalar from its usual encoding. Returns `None` if the message has another encoding or a shape."""
    if proto.WhichOneof("kind") != field or proto.HasField("content"):
        return None
    shape, values = proto.shape, getattr(proto, field).value
    if len(values) != 1 or shape.unknown_rank or shape.dim:
        return None
    return kind(values[0])


def _write_strings(proto: array_pb2.Array, payload: object, shape: Shape, path: str) -> None:
    array = _as_array(payload)
    if array is not None and array.dtype == _OBJECT:
        values, dims = cast("list[object]", array.ravel().tolist()), array.shape
    else:
        values, dims = [payload], ()
    for value in values:
        if not isinstance(value, bytes):
            raise TypeMismatchError(
                f"Expected `bytes` or an object array of `bytes` for {_notation(_STRING.dtype, shape)} at {path}, "
                f"found `{type(value).__name__}`; encode text as bytes first"
            )
    if not shape_fits(dims, shape):
        raise _mismatch(_STRING.dtype, shape, payload, path, "reshape the value to match its type")
    proto.dtype = _STRING.number
    proto.shape.dim.extend(dims)
    proto.string_list.value.extend(cast("list[bytes]", values))
    proto.string_list.SetInParent()  # sets the field even if the array is empty


def _read_content(proto: array_pb2.Array, encoding: _Encoding, dims: tuple[int, ...], path: str) -> NDArray[Any]:
    if encoding is _STRING:
        raise InvalidValueError(
            f"Expected strings in `string_list` at {path}, found strings in `content`; send the strings as a list"
        )
    content = proto.content
    length = math.prod(dims) * encoding.dtype.itemsize
    if len(content) != length:
        raise InvalidValueError(
            f"Expected {length} bytes of content for {_notation(encoding.dtype, dims)} at {path}, "
            f"found {len(content)}; send a shape that matches the content"
        )
    if encoding.dtype == np.bool_ and np.any(np.frombuffer(content, np.uint8) > 1):
        # NumPy does not check these bytes. With other bytes, two true values could compare as unequal.
        raise InvalidValueError(f"Expected only bytes 0 and 1 for bool at {path}, found other bytes; send 0 or 1")
    return _little_endian(np.frombuffer(content, encoding.dtype))


def _read_list(proto: array_pb2.Array, encoding: _Encoding, dims: tuple[int, ...], path: str) -> NDArray[Any]:
    kind = proto.WhichOneof("kind")
    if kind != encoding.list_field:
        raise InvalidValueError(
            f"Expected `{encoding.list_field}`{'' if encoding is _STRING else ' or `content`'} for "
            f"{_notation(encoding.dtype, dims)} at {path}, found {f'`{kind}`' if kind else 'no such field'}; "
            "set the field for this dtype"
        )
    values = _list_of(proto, kind)
    length = math.prod(dims) * encoding.entries_per_element
    if len(values) != length:
        raise InvalidValueError(
            f"Expected {length} entries in `{kind}` for {_notation(encoding.dtype, dims)} at {path}, "
            f"found {len(values)}; send a shape that matches the list"
        )
    words = np.fromiter(values, encoding.entry, length)
    if encoding.entry != encoding.word:
        limits = np.iinfo(encoding.word)
        if length and (words.min() < limits.min or words.max() > limits.max):
            raise InvalidValueError(
                f"Expected entries of `{kind}` at {path} to be in [{limits.min}, {limits.max}], found an entry outside "
                "this range; send values in the range of the dtype"
            )
        words = words.astype(encoding.word)
    words.flags.writeable = False  # the result is a view of this array
    return words if encoding is _STRING else _view(words, encoding.dtype)


def float_limits(dtype: np.dtype[Any]) -> np.finfo[Any]:
    """Returns the limits of a floating-point dtype, including bfloat16, which NumPy's own `finfo` does not support."""
    return cast("np.finfo[Any]", ml_dtypes.finfo(dtype))


def dtype_number(dtype: np.dtype[Any]) -> data_type_pb2.DataType:
    """Returns the number that represents a dtype in messages."""
    return _encoding_of(dtype, "dtype").number


def dtype_of_number(number: int) -> np.dtype[Any] | None:
    """Returns the dtype that a number in messages represents, or `None` if the number is unknown."""
    found = _BY_NUMBER.get(number)
    return None if found is None else found.dtype


def _encoding_of(dtype: np.dtype[Any], path: str) -> _Encoding:
    encoding = _BY_TYPE.get(dtype.type)
    if encoding is None:
        raise TypeMismatchError(
            f"Expected a dtype of the language at {path}, found {dtype}; use one of the language's 16 dtypes"
        )
    return encoding


def read_dims(found: Sequence[int], path: str, *, unknown_rank: bool = False) -> tuple[int, ...]:
    """Returns the dimensions in a message as a shape, after checking that the shape is fully known.

    Args:
      found: The dimensions in the message.
      path: The path of the value, for error messages.
      unknown_rank: Whether the message says that the rank is unknown.

    Raises:
      InvalidValueError: If the rank is unknown or too large, or a dimension is negative.
    """
    if unknown_rank or len(found) > _MAX_RANK:
        rank = "an unknown rank" if unknown_rank else f"{len(found)} dimensions"
        raise InvalidValueError(
            f"Expected a shape with at most {_MAX_RANK} dimensions at {path}, found {rank}; "
            "send the actual shape of the value"
        )
    dims = tuple(found)
    if dims and min(dims) < 0:
        raise InvalidValueError(
            f"Expected non-negative dimensions at {path}, found the dimension {min(dims)}; only types can have "
            "unknown dimensions, so send the actual shape of the value"
        )
    return dims


def _as_array(payload: object) -> NDArray[Any] | None:
    return np.asarray(cast(Any, payload)) if isinstance(payload, (np.generic, np.ndarray)) else None


def _view(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return cast(Any, array).view(dtype)


def _list_of(proto: array_pb2.Array, field: str) -> Any:
    """Returns the entries of a list field. Each list field has its own message class."""
    return getattr(proto, field).value


def _little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """Converts an array between the machine's byte order and little-endian, in either direction."""
    return array if sys.byteorder == "little" else cast(Any, array).byteswap()


def _mismatch(dtype: np.dtype[Any], shape: Shape, payload: object, path: str, hint: str) -> TypeMismatchError:
    array = _as_array(payload)
    found = f"`{type(payload).__name__}`" if array is None else _notation(array.dtype, array.shape)
    return TypeMismatchError(f"Expected {_notation(dtype, shape)}, found {found}; at {path}; {hint}")


def _notation(dtype: np.dtype[Any], shape: Shape) -> str:
    """Returns the language's notation for a tensor type with this dtype and shape, such as `float32[2,?]`."""
    name = "str" if dtype.type is np.str_ else str(dtype)
    if shape is None:
        return f"{name} of any shape"
    dims = ",".join("?" if dim is None else str(dim) for dim in shape)
    return f"{name}[{dims}]" if dims else name
