"""Makes closures of what users schedule: computations and Python functions, with arguments."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from fedstack.computations.types.language import ConcreteComputation, Type
from fedstack.errors import TypeMismatchError
from fedstack.foundations.value_text import describe
from fedstack.service.coordinator.calls.calls import Call, Function, Result, call_of, function_name, needs_of
from fedstack.service.coordinator.calls.python_calls import function_of, opener_for, python_call
from fedstack.service.coordinator.scheduling.closures import Closure

# So many functions are known at workers although nothing refers to them just now.
_MOST_FUNCTIONS = 256


class ClosureMaker:
    """Makes the closures of one coordinator, of which those of one function share what workers keep of it.

    Args:
      result_of: Returns the closure of something that stands for its value, and `None` for anything else.
    """

    def __init__(self, result_of: Callable[[object], Result | None]) -> None:
        self._result_of = result_of
        self._functions: OrderedDict[tuple[object, ...], tuple[object, Function]] = OrderedDict()

    def closure(
        self,
        fn: object,
        args: Sequence[object] | None,
        kwargs: Mapping[str, object] | None,
        repeatable: bool,
        prefetch: bool,
    ) -> tuple[Closure, Call]:
        """Returns what is to be scheduled, and what it runs.

        Raises:
          TypeMismatchError: If it is nothing to be scheduled, or the arguments do not fit.
        """
        if not isinstance(cast(object, args), (list, tuple, type(None))):
            raise TypeMismatchError(f"Expected args as a tuple or list, found {describe(args)}; write (value,) for one")
        if not isinstance(cast(object, kwargs), (Mapping, type(None))):
            raise TypeMismatchError(f"Expected kwargs as a dictionary of arguments by name, found {describe(kwargs)}")
        call = self._call(fn, args or (), kwargs or {})
        return Closure(call, needs_of(call.argument), repeatable, prefetch, call.function.name), call

    def _call(self, fn: object, args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
        name = function_name(fn)
        if isinstance(fn, ConcreteComputation):
            function = self._function((fn,), lambda: Function(fn, name))
            return call_of(function, args, kwargs, self._result_of, self._opener_for)
        if not callable(fn):
            raise TypeMismatchError(f"Expected a computation or a Python function to schedule, found {describe(fn)}")

        def function_for(types: Sequence[Type]) -> Function:
            return self._function((fn, *map(str, types)), lambda: function_of(fn, name, types))

        return python_call(name, args, kwargs, self._result_of, function_for)

    def _opener_for(self, expected: Type) -> Function:
        return self._function((str(expected),), lambda: opener_for(expected))

    def _function(self, key: Sequence[object], make: Callable[[], Function]) -> Function:
        """Returns what workers run: the same as for an earlier call if there was one of the same key."""
        # By identity: to compare computations by content, as the language does, takes long.
        known = tuple(part if isinstance(part, str) else id(part) for part in key)
        found = self._functions.get(known)
        if found is None:
            found = self._functions[known] = key, make()
            if len(self._functions) > _MOST_FUNCTIONS:
                self._functions.popitem(last=False)
        return found[1]
