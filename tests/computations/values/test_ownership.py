"""One table says who may keep or write into an array: the four places that ask agree on what only one owner has."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import federated_language as fl
import numpy as np
import pytest

from fedstack.computations.values import ownership
from fedstack.computations.values.containers import to_result
from fedstack.computations.values.ownership import snapshot_of, take_buffer, whole_buffer
from fedstack.computations.values.tensor_values import read_only

SIZE = 8192  # float32: large enough to be worth taking
VECTOR = fl.TensorType(np.float32, [SIZE])
kept: list[object] = []


class Case(NamedTuple):
    """What a function returns, and who may do what with it: keep it uncopied, write into it, give it to the user."""

    make: Callable[[], np.ndarray]
    stays: bool
    is_taken: bool
    is_given: bool
    is_whole: bool


def fresh(size: int = SIZE) -> np.ndarray:
    return np.ones(size, np.float32)


def remembered(keep: Callable[[np.ndarray], Any]) -> np.ndarray:
    array = fresh()
    kept.append(keep(array))
    return array


def frozen() -> np.ndarray:
    array = fresh()
    array.flags.writeable = False
    return array.view()


CASES = {
    "an array that nobody else has": Case(fresh, True, True, True, True),
    "an array that somebody has": Case(lambda: remembered(lambda a: a), False, False, False, True),
    "an array of which somebody has a view": Case(lambda: remembered(lambda a: a[:1]), False, False, False, True),
    "an array with a weak reference": Case(lambda: remembered(weakref.ref), True, False, True, True),
    "a part of an array": Case(lambda: fresh(2 * SIZE)[:SIZE], True, False, False, False),
    "an array in reverse": Case(lambda: fresh()[::-1], True, False, False, False),
    "an array seen as another dtype": Case(lambda: np.ones(SIZE, np.int32).view(np.float32), True, False, False, False),
    "a view of a read-only array": Case(frozen, True, False, False, False),
    "memory of bytes": Case(lambda: np.frombuffer(bytes(4 * SIZE), np.float32), True, False, False, False),
    "memory of a bytearray": Case(lambda: np.frombuffer(bytearray(4 * SIZE), np.float32), False, False, False, False),
}


@pytest.fixture(autouse=True)
def _nothing_kept():
    kept.clear()
    yield
    kept.clear()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_a_result_is_copied_where_somebody_may_write_into_it(case: Case) -> None:
    payloads: list[Any] = [read_only(case.make())]
    before = address(payloads[0])
    snapshot = snapshot_of(VECTOR)
    assert snapshot is not None
    assert (address(snapshot(payloads.pop(), None)) == before) == case.stays


def test_a_fold_writes_into_what_nobody_else_can_reach(case: Case) -> None:
    payloads: list[Any] = [read_only(case.make())]
    taken = take_buffer(payloads, 0)
    assert (taken is not None) == case.is_taken
    assert (payloads[0] is None) == case.is_taken
    assert taken is None or taken.flags.writeable


def test_a_user_gets_an_array_of_their_own(case: Case) -> None:
    payloads: list[Any] = [read_only(case.make())]
    before = address(payloads[0])
    result: Any = to_result(payloads.pop(), VECTOR)
    assert (address(result) == before) == case.is_given
    assert result.flags.writeable


def test_a_buffer_is_whole_if_the_payload_shows_all_of_it_and_it_can_be_written_to(case: Case) -> None:
    assert (whole_buffer(read_only(case.make())) is not None) == case.is_whole


def test_an_argument_is_looked_through_once_however_many_members_of_the_result_are_its_arrays(monkeypatch) -> None:
    owned = [np.ones(2, np.float32) for _ in range(50)]
    argument = tuple(read_only(one) for one in owned)
    searched, find = list[object](), ownership._arrays_in
    monkeypatch.setattr(ownership, "_arrays_in", lambda payload: searched.append(payload) or find(payload))
    snapshot = snapshot_of(fl.StructType([fl.TensorType(np.float32, [2])] * 50))
    assert snapshot is not None
    assert snapshot(argument[::-1], argument) == argument[::-1]
    assert sum(one is argument for one in searched) == 1
    other = tuple(read_only(np.ones(2, np.float32)[:]) for _ in range(49))
    strange = read_only(kept_by_module := np.ones(2, np.float32))
    found: Any = snapshot((*other, strange), argument)
    assert found[:49] == other
    kept_by_module[0] = 7
    assert found[49].tolist() == [1, 1]
