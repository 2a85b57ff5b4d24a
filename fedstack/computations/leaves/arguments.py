"""Shows payloads to leaf functions: structs as the function wants them, sequences as what cannot be changed."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import cast, overload

from fedstack.computations.types.language import SequenceType, StructType, Type
from fedstack.computations.types.type_structure import fields_of
from fedstack.computations.values.column_sequence import ColumnSequence, ShownSequence, column_of
from fedstack.computations.values.containers import Maker
from fedstack.computations.values.sequences import in_pass
from fedstack.computations.values.values import in_lists

Convert = Callable[[object], object]


class SequenceArgument(ShownSequence):
    """A sequence as a leaf function sees it: it can be iterated over again and again, and not be changed.

    There is one for each call of a function for a client, and it counts the passes: so neither retries nor what other
    functions do with the same sequence change the order in which this one gets its elements.
    """

    __slots__ = ("_convert", "_passes")
    payload: Iterable[object]

    def __init__(self, payload: Iterable[object], element: Type, convert: Convert | None) -> None:
        super().__init__(payload, element)
        self._convert = convert
        self._passes = 0

    def __iter__(self) -> Iterator[object]:
        number = self._passes
        self._passes += 1
        return self.in_pass(number) if type(self.payload) is ColumnSequence else self._later(number)

    def _later(self, number: int) -> Iterator[object]:
        """Begins when the first element is asked for: `list` asks for the length between that and the iterator."""
        yield from self.in_pass(number)

    def in_pass(self, number: int) -> Iterator[object]:
        convert = self._convert
        if convert is None:
            return in_pass(self.payload, number)
        lists = in_lists(self.payload, number)
        if lists is None:
            return map(convert, in_pass(self.payload, number))
        return itertools.chain.from_iterable([convert(element) for element in some] for some in lists)

    def __len__(self) -> int:
        try:
            return len(cast("Sized", self.payload))
        except TypeError:  # A stream: its elements are made once and kept, as those that a worker gets are.
            held = column_of(self.payload, self.element)
            self.payload = held
            return len(held)

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> "SequenceArgument": ...
    def __getitem__(self, index: int | slice) -> object:
        size, source = len(self), self.payload
        if isinstance(index, slice):
            held = source if isinstance(source, Sequence) else list(itertools.islice(source, size))
            return SequenceArgument(held[index], self.element, self._convert)
        if isinstance(source, Sequence):
            item = source[index]
        else:
            item = next(itertools.islice(source, range(size)[index], None))
        return item if self._convert is None else self._convert(item)

    def __repr__(self) -> str:
        return f"SequenceArgument({self.payload!r})"


def argument_converter(type_spec: Type, maker_of: Callable[[StructType], Maker] | None = None) -> Convert | None:
    """Returns the function from a payload to what a leaf function sees, or `None` where they are the same.

    Args:
      type_spec: The type of the payload.
      maker_of: Returns what builds the container of a struct out of its members; by default structs are tuples.
    """
    if isinstance(type_spec, SequenceType):
        element, shown = type_spec.element, argument_converter(type_spec.element, maker_of)
        return lambda payload: SequenceArgument(cast("Iterable[object]", payload), element, shown)
    if not isinstance(type_spec, StructType):
        return None
    make = None if maker_of is None else maker_of(type_spec)
    members = [argument_converter(t, maker_of) for _, t in fields_of(type_spec)]
    if not any(members):
        return cast("Convert | None", make)
    build = cast(Maker, make or tuple)

    def convert(payload: object) -> object:
        return build(converted(members, payload))

    return convert


def converted(converters: Sequence[Convert | None], payload: object) -> list[object]:
    """Returns the members of the payload of a struct as a leaf function sees them."""
    values = cast("tuple[object, ...]", payload)
    return [value if convert is None else convert(value) for convert, value in zip(converters, values)]
