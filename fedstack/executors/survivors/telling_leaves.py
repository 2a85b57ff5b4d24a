"""Loads leaves that report each call before it starts, so that it is known which call ended the process.

Their results have the bits that they have in other processes.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import cast

import attrs

from fedstack.computations.leaves.bound_operation import (
    BoundOperation,
    ElementFold,
    FoldStep,
    FusedStep,
    FusedTensor,
    Fuser,
)
from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves
from fedstack.computations.types.language import TensorType, computation_pb2
from fedstack.computations.values.columns import Column

MAX_NAME = 200


class _TellingLeaf(BoundOperation):
    """A leaf that reports the client and the function before each call."""

    def __init__(self, leaf: BoundOperation, leaves: "TellingLeaves") -> None:
        self.name = leaf.name
        self.parameter = leaf.parameter
        self.result = leaf.result
        self.prefers_columns = leaf.prefers_columns
        self.elements_at_once = leaf.elements_at_once
        self.fuser = leaves.fuser_for(leaf)
        self.leaf = leaf
        self._tell = leaves.tell

    def call(self, argument: object, client: int | None = None) -> object:
        with self.telling(client):
            return self.leaf.call(argument, client)

    def call_elements(self, argument: Column, first: int, client: int | None) -> Column:
        with self.telling(client):
            return self.leaf.call_elements(argument, first, client)

    def element_fold(self, step: FoldStep) -> ElementFold | None:
        fold = self.leaf.element_fold(step)
        return None if fold is None else _TellingFold(fold, self)

    @contextlib.contextmanager
    def telling(self, client: int | None) -> Generator[None, None, None]:
        at_client = {} if client is None else {"client": client}
        self._tell(**at_client, function=self.name[:MAX_NAME])
        try:
            yield
        except BaseException:
            self._tell(**at_client, raised=True)
            raise
        self._tell(**at_client)


class _TellingFold(ElementFold):
    """A fold that reports the client and the function before each call."""

    def __init__(self, fold: ElementFold, leaf: _TellingLeaf) -> None:
        self.at_once = fold.at_once
        self._fold = fold
        self._leaf = leaf

    def __call__(
        self, state: Sequence[object], constants: Sequence[object], elements: Column, client: int | None
    ) -> Sequence[object]:
        with self._leaf.telling(client):
            return self._fold(state, constants, elements, client)


class _TellingFuser(Fuser):
    """Fuses leaves that report calls."""

    def __init__(self, fuser: Fuser, leaves: "TellingLeaves") -> None:
        self._fuser = fuser
        self._leaves = leaves

    def fuse(
        self, inputs: Sequence[TensorType], steps: Sequence[FusedStep], results: Sequence[FusedTensor]
    ) -> BoundOperation:
        own = [attrs.evolve(step, operation=cast(_TellingLeaf, step.operation).leaf) for step in steps]
        return _TellingLeaf(self._fuser.fuse(inputs, own, results), self._leaves)


class TellingLeaves(LoadedLeaves):
    """Loads leaves that report each call before it starts."""

    def __init__(self, leaves: LoadedLeaves, tell: Callable[..., None]) -> None:
        super().__init__()
        self.tell = tell
        self._leaves = leaves
        self._fusers: dict[Fuser, _TellingFuser] = {}

    def load(self, computation: computation_pb2.Computation) -> BoundOperation:
        return _TellingLeaf(self._leaves.load(computation), self)

    def fuser_for(self, leaf: BoundOperation) -> Fuser | None:
        """Returns what fuses a leaf that reports calls; `None` if the leaf runs alone."""
        return None if leaf.fuser is None else self._fusers.setdefault(leaf.fuser, _TellingFuser(leaf.fuser, self))
