"""Run as a script: holds every lock that can be reached, forks, and says which of them are still held in the child.

It starts from the modules of the package and from what users keep: contexts, factories, pools of threads.
"""

import collections
import contextvars
import functools
import importlib
import json
import os
import pkgutil
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

import fedstack
from fedstack.executors.concurrency.leaf_threads import LeafThreads
from fedstack.executors.concurrency.progress import ProgressCounts

LOCK, RLOCK = type(threading.Lock()), type(threading.RLock())
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_WEAK = (weakref.WeakSet, weakref.WeakValueDictionary, weakref.WeakKeyDictionary)
_ROOMS = ("fedstack.", "threading", "queue", "concurrent.futures", __name__)


def members(thing: Any) -> Iterator[tuple[object, Any]]:
    """Yields what an object refers to, and under what name; nothing of what is not ours."""
    if isinstance(thing, dict | weakref.WeakValueDictionary | weakref.WeakKeyDictionary):
        for key, value in list(thing.items()):
            yield repr(key)[:40], value
            yield "key", key
    elif isinstance(thing, (*_CONTAINERS, *_WEAK)):
        yield from enumerate(list(thing))
    elif isinstance(thing, contextvars.ContextVar):
        yield "value", thing.get(None)
    elif isinstance(thing, types.MethodType):
        yield from ((name, getattr(thing, name)) for name in ("__self__", "__func__"))
    elif isinstance(thing, functools.partial):
        yield from ((name, getattr(thing, name)) for name in ("func", "args", "keywords"))
    elif isinstance(thing, types.FunctionType) and thing.__module__.startswith("fedstack"):
        yield from (("cell", cell.cell_contents) for cell in thing.__closure__ or () if cell != types.CellType())
        yield from ((name, getattr(thing, name)) for name in ("__defaults__", "__kwdefaults__", "__dict__"))
    elif isinstance(thing, type) and thing.__module__.startswith("fedstack"):
        yield from list(vars(thing).items())
    elif type(thing).__module__.startswith(_ROOMS) and not isinstance(thing, threading.Thread):
        yield from list(getattr(thing, "__dict__", {}).items())
        for kind in type(thing).__mro__:
            names = vars(kind).get("__slots__", ())
            for name in [names] if isinstance(names, str) else names:
                if hasattr(thing, name):
                    yield name, getattr(thing, name)


def locks(roots: dict[str, Any]) -> dict[str, Any]:
    """Returns the locks that can be reached, by the way there."""
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # keeps what is made on the way alive: nothing else gets its identity
    stack = list(roots.items())
    while stack:
        path, thing = stack.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, (LOCK, RLOCK)):
            found[path] = thing
        else:
            stack.extend((f"{path}.{name}", member) for name, member in members(thing))
    return found


def roots() -> dict[str, Any]:
    """Returns the modules' objects, and what users keep, as it is after some use."""
    import fault_leaves

    for module in pkgutil.walk_packages(fedstack.__path__, "fedstack."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    local = fedstack.create_sync_local_execution_context(max_concurrent_clients=2, clients_per_thread=1)
    sizing = fedstack.sizing_executor_factory()
    remote = fedstack.create_sync_remote_execution_context("localhost:1", connect_seconds=0.1)
    for context in (local, fedstack.contexts.SyncExecutionContext(sizing), remote):
        try:
            with fedstack.use_context(context):
                fault_leaves.mean_wobble(np.ones(20, np.float32).tolist())
        except fedstack.FedstackError:
            assert context is remote
    modules = {name: dict(vars(module)) for name, module in sys.modules.items() if name.startswith("fedstack.")}
    kept = {"local": local, "sizing": sizing, "remote": remote, "threads": LeafThreads(1), "progress": ProgressCounts()}
    kept["async local"] = fedstack.create_async_local_execution_context()
    return {**modules, **kept, "control": threading.Lock()}


def is_free(lock: Any) -> bool:
    """Tells whether the current thread could get a lock; gets it."""
    return lock.acquire(blocking=False)


def main() -> None:
    everything = roots()
    found = locks(everything)
    holding = threading.Event()

    def hold() -> None:
        for lock in found.values():
            is_free(lock)  # if not, somebody else holds it already
        holding.set()
        threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    holding.wait()
    print(json.dumps(sorted(found)), flush=True)
    if os.fork() == 0:
        held = [path for path, lock in locks(everything).items() if not is_free(lock)]
        print(json.dumps(held), flush=True)
        os._exit(0)
    os.wait()
    os._exit(0)


if __name__ == "__main__":
    main()
