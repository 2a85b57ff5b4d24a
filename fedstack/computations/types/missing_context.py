"""Says what to do where a computation is called in a thread that has no context, which the language does not say.

The language keeps contexts per thread. One object stands at the bottom of every thread's stack until another default is
set there; it is the language's own, and becomes ours when the first leaf or context is made.
"""

import threading
from typing import NoReturn

from fedstack.computations.types.language import SyncContext, get_context_stack
from fedstack.errors import ContextError

_is_explained = False


class MissingContext(SyncContext):
    """What is in force where nothing is: calls are refused."""

    def invoke(self, comp: object, arg: object) -> NoReturn:
        """Raises, and says how to get a context."""
        name = getattr(comp, "__name__", None)
        called = "A computation" if name is None else repr(name)
        raise ContextError(
            f"{called} was called in the thread {threading.current_thread().name!r}, which has no execution context; "
            "call fedstack.set_sync_local_execution_context(), or that of your workers, there first or, to share one "
            "context among threads, make it with a fedstack.create_... function, and write `with "
            "fedstack.use_context(context):` in each"
        )


def explain_missing_contexts() -> None:
    """Lets calls say what to do in threads without a context, unless their default is not the language's own."""
    global _is_explained
    if _is_explained:
        return
    found: list[object] = []
    # A new thread has nothing but the shared default; this one may have others.
    look = threading.Thread(target=lambda: found.append(get_context_stack().current), daemon=True)
    try:
        look.start()
    except (RuntimeError, MemoryError):
        return  # there is no room for a thread: the next leaf or context does it
    look.join()
    _is_explained = True
    for default in found:
        kind = type(default)
        if kind.__name__ == "RuntimeErrorContext" and kind.__module__.startswith("federated_language."):
            default.__class__ = MissingContext
