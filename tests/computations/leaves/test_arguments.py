"""Sequences as leaf functions see them."""

import itertools

import numpy as np

from fedstack.computations.leaves.leaf import SequenceArgument
from fedstack.computations.types.language import SequenceType, to_type
from fedstack.computations.values.values import normalize
from fedstack.data.client_data import from_generator


def of_stream():
    """Returns what a function sees of a stream, and how often that has been begun."""
    begun = itertools.count()
    sequence = from_generator(lambda: iter([np.int32(next(begun)), np.int32(7)]))
    element = to_type(np.int32)
    return SequenceArgument(normalize(sequence, SequenceType(element)), element, None), begun


def test_a_stream_is_begun_anew_in_each_pass_as_long_as_its_length_does_not_matter():
    argument, begun = of_stream()
    assert [[int(x) for x in itertools.islice(argument, 1)] for _ in range(2)] == [[0], [1]]
    assert next(begun) == 2


def test_a_stream_whose_length_was_asked_for_is_held_as_it_was_then():
    argument, begun = of_stream()
    assert len(argument) == 2
    assert [*argument, *argument] == [0, 7, 0, 7]
    assert (argument[0], argument[-1], list(argument[1:])) == (0, 7, [7])
    assert next(begun) == 1


def test_a_list_of_a_stream_begins_it_once():
    argument, begun = of_stream()
    assert list(argument) == [0, 7]
    assert bool(argument)
    assert next(begun) == 1
