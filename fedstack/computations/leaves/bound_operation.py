"""Defines bound operations: the functions that programs call, which convert one payload to another.

A call over a column also registers its list of results. From the length of this list, a progress display can tell which
client each thread is processing, without extra work per client.
"""

import abc
import contextlib
import enum
import threading
from collections.abc import Generator, Sequence, Sized

import attrs

from fedstack.computations.types.language import TensorType, Type
from fedstack.computations.values.columns import Column, column_from_payloads

# The unfinished calls over columns of each thread, innermost last, because functions may run computations. Each entry
# has the first client and the results so far.
_calls: dict[int, list[tuple[int, Sized]]] = {}


class ColumnCall:
    """Records that this thread calls a function for one client after another. Used in a `with` block.

    Args:
      first_client: The index of the first client.
      results: The list to which the results are appended, in the order of the clients.
    """

    def __init__(self, first_client: int, results: Sized) -> None:
        self._call = first_client, results

    def __enter__(self) -> None:
        _calls.setdefault(threading.get_ident(), []).append(self._call)

    def __exit__(self, *error: object) -> None:
        thread = threading.get_ident()
        calls = _calls[thread]
        calls.pop()
        if not calls:
            del _calls[thread]


class ThreadPlace:
    """A view of the progress of this thread's next call over a column. Any thread may read it.

    Calls that the thread has already started when this object is created are ignored.

    Attributes:
      thread: The identifier of the thread.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._depth = len(_calls.get(self.thread, ()))

    def client(self) -> int | None:
        """Returns the index of the client that the call is processing, or `None` if there is no call.

        When the call has processed its last client, the result is the index of that client plus one.
        """
        calls = tuple(_calls.get(self.thread, ()))  # a copy, since the other thread may change the list meanwhile
        if len(calls) <= self._depth:
            return None
        first_client, results = calls[self._depth]
        return first_client + len(results)


class _Stops(threading.local):
    """What stops the operation that this thread runs: anything in the list."""

    now: Sequence[object] = ()


_stops = _Stops()


@contextlib.contextmanager
def stopped_by(stops: Sequence[object]) -> Generator[None, None, None]:
    """Lets operations of several steps, which run in the block, end between two steps once `stops` is not empty."""
    before, _stops.now = _stops.now, stops
    try:
        yield
    finally:
        _stops.now = before


def is_stopped() -> bool:
    """Returns whether the caller of the operation that this thread runs was cancelled."""
    return bool(_stops.now)


class BoundOperation:
    """An operation that is ready to run. It may run on several threads at once, and its results are not checked again.

    Attributes:
      name: The name of the operation in messages.
      result: The result type of the operation.
      prefers_columns: Whether `call_column` does more than call the operation for one client after another. If so, it
        is used even for large results.
      lanes: The number of clients, a power of two, that the operation processes in one call if they begin at a multiple
        of it. A call with fewer clients takes as long.
      least_seconds: The time below which a call for several clients is inefficient, because to start it takes long.
      elements_at_once: How many elements of a sequence `call_elements` processes best in one call; 0 if the operation
        is called for each element when it is read, because a call may have effects or raise errors of its own.
      held_bytes: The memory that the operation holds besides its message, such as compiled code, roughly.
      fuser: Makes one operation of this one and others with the same fuser; `None` if it runs alone in any case.
      parameter: The type of the argument of an operation with a fuser.
      max_parallel: The maximum number of clients of a phase that may run concurrently, for a function that is limited
        by one device or one session; `None` for no limit. Calls on the server and calls of other invocations do not
        count.
      differing_module: The name of the operation's module if the sender has another version of this module; otherwise
        empty.
    """

    name: str
    result: Type
    prefers_columns: bool = False
    lanes: int = 1
    least_seconds: float = 0.0
    elements_at_once: int = 0
    held_bytes: int = 0
    fuser: "Fuser | None" = None
    parameter: Type | None = None
    max_parallel: int | None = None
    differing_module: str = ""

    def call(self, argument: object, client: int | None = None) -> object:
        """Runs the operation once and returns the payload of its result.

        Args:
          argument: The payload of the argument; `None` if the operation has no parameter.
          client: The index of the client, for error messages; `None` on the server.
        """
        raise NotImplementedError

    def call_column(self, argument: Column | None, first_client: int, size: int) -> Column:
        """Runs the operation once for each of `size` consecutive clients and returns the column of results.

        Args:
          argument: The column of arguments; `None` if the operation has no parameter.
          first_client: The index of the first client.
          size: The number of clients.
        """
        arguments = [None] * size if argument is None else argument.items()
        payloads: list[object] = []
        with ColumnCall(first_client, payloads):
            for client, item in enumerate(arguments, first_client):
                payloads.append(self.call(item, client))
        return column_from_payloads(payloads, self.result, list_is_own=True)

    def call_elements(self, argument: Column, first: int, client: int | None) -> Column:
        """Runs the operation for consecutive elements of a sequence, if `elements_at_once` is not 0.

        The result of an element must not depend on how the sequence is divided into calls.

        Args:
          argument: The column of arguments, one for each element.
          first: The index of the first element in its sequence.
          client: The index of the client that has the sequence, for error messages; `None` on the server.
        """
        raise NotImplementedError

    def element_fold(self, step: "FoldStep") -> "ElementFold | None":
        """Returns what folds a sequence with this operation; `None` if the operation is called for each element.

        Args:
          step: How the operation is called for an element.
        """
        return None


class FoldSource(enum.Enum):
    """Where a tensor of a fold comes from."""

    STATE = "state"
    ELEMENT = "element"
    CONSTANT = "constant"
    RESULT = "result"


@attrs.frozen
class FoldTensor:
    """A tensor that a step of a fold reads.

    Attributes:
      source: What it is part of: the state before the step, the element, what is the same for all elements, or the
        result of the operation.
      position: Its position among the tensors of the source.
    """

    source: FoldSource
    position: int


@attrs.frozen
class FoldStep:
    """A step of a fold, which computes a state from the state before it and an element.

    Attributes:
      state: The type of a state, whose sizes are known.
      element: The type of an element.
      argument: The tensors of the operation's argument, in the order of its type.
      next_state: The tensors of the next state.
    """

    state: Type
    element: Type
    argument: tuple[FoldTensor, ...]
    next_state: tuple[FoldTensor, ...]


class ElementFold(abc.ABC):
    """Folds the elements of a sequence, many in one call. How a sequence is divided into calls does not affect results.

    Attributes:
      at_once: The number of elements of a call at most.
    """

    at_once: int

    @abc.abstractmethod
    def __call__(
        self, state: Sequence[object], constants: Sequence[object], elements: Column, client: int | None
    ) -> Sequence[object]:
        """Folds some elements and returns the next state, whose arrays may be of the runtime.

        Args:
          state: The tensors of the state.
          constants: The tensors that are the same for all elements.
          elements: The elements.
          client: The index of the client that has the sequence, for error messages; `None` on the server.
        """


@attrs.frozen
class FusedTensor:
    """A tensor that a fused operation reads or returns.

    Attributes:
      step: The step that computes it; `None` for an input of the fused operation.
      position: Its position among the tensors of the step's result, or among the inputs.
    """

    step: int | None
    position: int


@attrs.frozen(eq=False)
class FusedStep:
    """A step of a fused operation.

    Attributes:
      operation: The operation that the step runs.
      argument: The tensors of its argument, in the order of the type.
    """

    operation: BoundOperation
    argument: tuple[FusedTensor, ...]


class Fuser(abc.ABC):
    """Makes one operation of several that read each other's results, so that a runtime compiles and calls them as one.

    Results must have the same bits as if the operations ran one after another: which operations are fused is not part
    of what a computation means.
    """

    @abc.abstractmethod
    def fuse(
        self, inputs: Sequence[TensorType], steps: Sequence[FusedStep], results: Sequence[FusedTensor]
    ) -> BoundOperation:
        """Returns an operation of a struct of tensors, whose result is a struct of tensors.

        Args:
          inputs: The types of the tensors of the argument.
          steps: The operations, in an order in which they can run. All have this fuser.
          results: The tensors of the result. Each is a result of a step.
        """
