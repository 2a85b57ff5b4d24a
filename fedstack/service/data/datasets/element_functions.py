"""Applies computations to the elements of datasets, a block at a time."""

import itertools
from collections.abc import Callable, Iterator

from fedstack.computations.leaves.leaf_runtimes import leaf_name
from fedstack.computations.leaves.work_scope import current_scope
from fedstack.computations.plan.interpreter import ProgramRunner, run_columns
from fedstack.computations.plan.plan import plans
from fedstack.computations.plan.program import Program, closed_program
from fedstack.computations.types.error_places import with_place
from fedstack.computations.types.language import (
    ConcreteComputation,
    FunctionType,
    StructType,
    Type,
    computation_pb2,
)
from fedstack.computations.types.type_structure import contains_federated, contains_function, type_from_proto
from fedstack.computations.values.column_sequence import lists_of
from fedstack.computations.values.columns import Column, Payload, column_from_payloads
from fedstack.errors import FedstackError, InvalidComputationError, TypeMismatchError
from fedstack.executors.concurrency.leaf_threads import LeafThreads, RunInline
from fedstack.executors.leaf_executor import LeafEngine
from fedstack.executors.sequence_executor import SequenceEngine
from fedstack.foundations.value_text import describe
from fedstack.service.data.datasets.blocks import Blocks, Pace, dataset_scope


class ElementFunction:
    """A computation without placements, for elements.

    Args:
      computation: The computation, as users have it or as a message. It is loaded, when it is first used, under the
        policy that is in force now.
      where: What it was given to, for messages.

    Attributes:
      computation: It as a message.
      name: What messages call it; empty if it is made of several.
      type: Its type.

    Raises:
      InvalidComputationError: If it is none.
    """

    def __init__(self, computation: object, where: str) -> None:
        self._source, self._where = computation, where  # the source keeps a Python function alive
        self._policy = current_scope().policy
        if isinstance(computation, ConcreteComputation):
            computation = computation.to_proto()
        if not isinstance(computation, computation_pb2.Computation):
            raise InvalidComputationError(
                f"Expected a computation, found {describe(computation)}; at {where}; decorate the function with "
                "fedstack.python_computation"
            )
        found = type_from_proto(computation.type)
        if not isinstance(found, FunctionType) or contains_federated(found) or contains_function(found.result):
            raise InvalidComputationError(
                f"Expected a function of values without placements, found {found}; at {where}"
            )
        self.computation = computation
        self.type = found
        self.name = leaf_name(computation)
        self._program: Program | None = None

    @property
    def program(self) -> Program:
        """Its program, ready to run.

        Raises:
          CarrierError: If it cannot be loaded here.
        """
        if self._program is None:
            engine = SequenceEngine(LeafEngine(LeafThreads(), None, None))
            scope = current_scope()
            rules = scope if self._policy is scope.policy or self._policy is None else scope.under(self._policy)
            with rules.entered(), RunInline():  # whoever iterates waits for it
                self._program = engine.link(closed_program(plans.plan(self.computation)))
        return self._program

    def applied(self, blocks: Blocks, place: Callable[[int], str]) -> Iterator[tuple[Column, Column]]:
        """Yields pieces of blocks, and what the function makes of each element of them.

        A piece is small at first, and never so large that its first element waits long for its last one.

        Args:
          blocks: The elements.
          place: Names one by its number among them, for messages.

        Raises:
          FedstackError: What the function raised, after all elements before that one; the message says which it is.
        """
        program, pace = self.program, Pace(self.type.result)
        index = 0
        for block in blocks:
            first = 0
            while first < len(block):
                piece = block.slice(first, min(first + pace.rows, len(block)))
                first += len(piece)
                clock = dataset_scope().clock
                begun = clock()
                try:
                    (made,) = run_columns(program, [piece], 0, len(piece))
                except FedstackError:
                    # Once more, so that those before the one that fails come out, and its error says which it is.
                    yield from self._one_by_one(piece, index, place)
                else:
                    pace.note(made, clock() - begun)
                    yield piece, made
                index += len(piece)

    def _one_by_one(self, piece: Column, first: int, place: Callable[[int], str]) -> Iterator[tuple[Column, Column]]:
        run = ProgramRunner(self.program).run
        for index, payload in enumerate(piece.items()):
            try:
                made = run([payload], None)
            except FedstackError as error:
                raise with_place(error, place(first + index)) from error.__cause__
            yield piece.slice(index, index + 1), column_from_payloads(made, self.type.result)

    def check_reduces(self, element: Type) -> Type:
        """Checks that it takes a state and an element of a type, and returns a state; returns the type of the state.

        Raises:
          TypeMismatchError: If not.
        """
        state = self.type.result
        self.check_takes(StructType([state, element]), "reduce")
        return state

    def reduced(self, state: Payload, blocks: Blocks) -> Payload:
        """Returns what it makes of a state and each element in turn."""
        run = ProgramRunner(self.program).run
        for index, payload in enumerate(itertools.chain.from_iterable(lists_of(blocks))):
            try:
                (state,) = run([(state, payload)], None)
            except FedstackError as error:
                raise with_place(error, f"at element {index} of reduce({self!r})") from error.__cause__
        return state

    def check_takes(self, element: Type, where: str) -> None:
        """Checks that elements of a type fit its parameter.

        Raises:
          TypeMismatchError: If not.
        """
        if self.type.parameter is None or not self.type.parameter.is_assignable_from(element):
            raise TypeMismatchError(
                f"Expected a function of {element}, found {self} of type {self.type}; at {where}; "
                "declare it for the elements of the dataset"
            )

    def __reduce__(self) -> tuple[type["ElementFunction"], tuple[object, str]]:
        """Says how to write it: Python functions that take a dataset along to other processes refer to it."""
        return ElementFunction, (self._source, self._where)  # and nothing that belongs to this process

    def __repr__(self) -> str:
        return self.name or "a computation"
