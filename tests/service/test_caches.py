"""Whatever is kept longer than a session is bounded, however much clients send; and all of it is in a table here."""

import collections
import contextlib
import functools
import gc
import importlib
import os
import pkgutil
import weakref
from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import federated_language as fl
import foreign_bytes as fb
import numpy as np
import pytest
from federated_language.proto import computation_pb2
from foreign_bytes import FLOAT, array, listed
from google.protobuf import any_pb2

import fedstack
from fedstack.computations.leaves import leaf_runtimes
from fedstack.computations.leaves.carrier_policy import CarrierPolicy
from fedstack.computations.plan.plan import PlanCache
from fedstack.computations.plan.render import call_intrinsic, function_of, reference
from fedstack.computations.types.type_structure import (
    TypeMemo,
    fields_of,
    recent_types,
    release_unused_types,
    type_from_proto,
)
from fedstack.errors import FedstackError, InvalidComputationError, ResourceLimitError
from fedstack.foundations.caches import BoundedCache
from fedstack.proto import carriers_pb2
from fedstack.proto.executor_pb2 import CreateValueResponse, GetExecutorResponse
from fedstack.service.executor.executor_service import ExecutorService
from fedstack.service.host.host import GrpcServer
from fedstack.service.host.limits import ServiceLimits
from fedstack.transport.peers.executor_stub import EXECUTOR_GROUP

INT = fl.TensorType(np.int32)
# Tables of the code, which nobody changes when it has been imported.
CONSTANT = None
# What keeps things, and the most of them. Where there is none, they end with what they are for.
TABLE: dict[str, tuple[int | None, str]] = {
    "transport.peers.io_loop._calls": (None, "weakly: event loops"),
    "foundations.deadline._timers": (None, "weakly: event loops, and their timers"),
    "executors.remote.remote_transfers._rooms": (None, "weakly: event loops"),
    "foundations.memory_files._mapped": (128, "weakly: files of clients that are mapped"),
    "executors.remote.session_keeper.io_loop.ticks._calls": (None, "a session's, and ends with it"),
    "foundations.after_fork._registered": (None, "weakly: what is registered ends with its owner"),
    "computations.leaves.bound_operation._calls": (None, "calls that run, by the thread"),
    "backends.elastic.phase_news.observers.dropped": (None, "a number for each class of observers"),
    "data.ray_tables._ordered._switches": (None, "one for each dataset of Ray that is split just now"),
    "backends.worker_side._process": (4, "stacks, for numbers of functions at the same time that senders ask for"),
    "contexts.in_force._thread.blocks": (None, "the blocks that the current thread is in"),
    "foundations.public_names._OTHER_NAMES": (CONSTANT, "names of options"),
    "computations.leaves.xla.jax_trees._registered": (None, "weakly: classes of functions decorated here"),
    "computations.leaves.xla.jax_api._process": (1, "the process that has imported JAX"),
    "computations.leaves.xla.compiled_code._OPTIONS": (CONSTANT, "options of XLA"),
    "computations.leaves.xla.compiled_code._all_code._kept": (256, "compiled functions"),
    "demo.training._FILES": (CONSTANT, "examples"),
    "observe.figures._METADATA": (CONSTANT, "kinds of pictures"),
    "backends.ray_cluster.ray_api._OPTIONS": (CONSTANT, "resources with options of their own"),
    "backends.ray_cluster.ray_contexts._DEFAULTS": (CONSTANT, "options"),
    "contexts.local_contexts._DEFAULTS": (CONSTANT, "options"),
    "backends.remote_contexts._DEFAULTS": (CONSTANT, "options"),
    "computations.codec.arrays._BY_NUMBER": (CONSTANT, "dtypes"),
    "computations.codec.arrays._BY_TYPE": (CONSTANT, "dtypes"),
    "computations.values.tensor_values._INTEGERS": (CONSTANT, "dtypes"),
    "backends.ray_cluster.ray_api._starters._pool._jobs._items": (None, "calls that start Ray"),
    "backends.ray_cluster.ray_api._starters._pool._held": (None, "owners whose work runs"),
    "backends.ray_cluster.ray_api._starters._pool._starting": (None, "threads that start"),
    "backends.ray_cluster.ray_api._starters._pool.waiting": (64, "threads without work"),
    "backends.ray_cluster.ray_workers._of_parents": (None, "one a context over Ray for each generation of forks"),
    "computations.leaves.computation_pickles.registry._known": (
        None,
        "weakly: functions decorated here",
    ),
    "computations.leaves.computation_pickles.registry._kept": (
        None,
        "decorated here; by clients, as code only",
    ),
    "computations.values.containers._argument_makers._items": (None, "a type's, and ends with it"),
    "computations.values.containers._result_makers._items": (None, "a type's, and ends with it"),
    "computations.values.deferred_column._refused": (CONSTANT, "classes that fedstack knows"),
    "computations.values.deferred_column._standing_for": (CONSTANT, "classes of fedstack's"),
    "computations.leaves.function_pickles._pickler": (1, "takes no argument"),
    "computations.leaves.python_functions.has_pytorch": (1, "takes no argument"),
    "computations.leaves.function_pickles._reducers": (CONSTANT, "classes of fedstack's"),
    "computations.plan.graph.INTRINSICS": (CONSTANT, "the language's"),
    "computations.plan.intrinsics._TABLE": (CONSTANT, "the language's"),
    "computations.plan.intrinsics._checked._items": (None, "a type's, and ends with it"),
    "computations.leaves.leaf_runtimes._installed": (1, "takes no argument"),
    "computations.leaves.xla.jax_api.jax": (1, "takes no argument"),
    "computations.leaves.xla.jax_api.is_installed": (1, "takes no argument"),
    "computations.leaves.xla.jax_api.fingerprint": (1, "takes no argument"),
    "computations.leaves.xla.jax_api.one_thread_device": (1, "takes no argument"),
    "computations.leaves.xla.jax_runtime._written._items": (64, "and 32 MiB"),
    "computations.leaves.xla.exported_program._CALLBACKS": (CONSTANT, "operations of JAX"),
    "computations.leaves.xla.jax_api._ELEMENTS": (CONSTANT, "types"),
    "computations.leaves.leaf_runtimes._runtimes": (CONSTANT, "what was registered or is installed"),
    "computations.leaves.function_pickles._warned_of._items": (1000, "and nothing but names; the client's"),
    "computations.leaves.computation_pickles.registry._kept_of_code": (None, "code of functions that are kept"),
    "computations.leaves.named_functions._files_as_imported": (None, "installed files of allowed modules"),
    "computations.leaves.named_functions._digests._items": (
        1000,
        "digests of sources",
    ),
    "computations.leaves.portability._warned_of": (None, "modules that are imported here; the client's"),
    "computations.plan.graph._CLIENT_WORK": (CONSTANT, "intrinsics"),
    "computations.plan.graph._SELECTS": (CONSTANT, "intrinsics"),
    "computations.plan.graph._TRANSPARENT": (CONSTANT, "intrinsics"),
    "computations.plan.plan.plans._by_content._items": (1000, "and 128 MiB"),
    "computations.plan.plan.plans._by_identity._items": (1000, "and 128 MiB"),
    "computations.leaves.computation_pickles._BUILT_IN": (CONSTANT, "containers"),
    "computations.leaves.computation_pickles._NAMES": (CONSTANT, "containers"),
    "computations.values.records._classes._items": (1024, "and 16 MiB"),
    "computations.values.records.keyed_tuple_class": (1024, "classes of named tuples that are installed"),
    "computations.values.tensor_values._PYTHON_KINDS": (CONSTANT, "dtypes"),
    "computations.types.type_structure.recent_types._types": (10_000, "and those of 64 MiB of messages"),
    "computations.types.type_structure.recent_types.on_clear": (CONSTANT, "caches of types"),
    "computations.types.type_sizes._known._items": (None, "a type's, and ends with it"),
    "computations.types.type_structure._fields._items": (None, "a type's, and ends with it"),
    "computations.types.type_structure._kinds._items": (None, "a type's, and ends with it"),
    "computations.types.type_structure._bytes._items": (None, "a type's, and ends with it"),
    "computations.types.type_structure._types_by_bytes": (10_000, "and 64 MiB of messages"),
    "executors.remote.session_keeper._open._keepers": (None, "weakly: the sessions that this process has open"),
    "executors.base.engines._OPERATIONS": (CONSTANT, "intrinsics"),
    "computations.leaves.compilations.compilations._now": (None, "threads that compile"),
    "computations.leaves.compilations.compilations._running": (None, "threads that run JAX functions"),
    "program.sources.table_data_source._sources": (None, "weakly: data sources of programs"),
    "data.client_states.shard_head._DTYPES": (CONSTANT, "dtypes"),
    "program.states.state_file._TEXTS": (CONSTANT, "kinds of values"),
    "foundations.blas_threads._limit._before": (None, "BLAS libraries that are limited"),
    "foundations.blas_threads._limit._libraries": (None, "BLAS libraries of this process"),
    "executors.base.phase_engine.fold_threads._pool._jobs._items": (None, "calls that run"),
    "executors.base.phase_engine.fold_threads._pool._held": (None, "owners whose work runs"),
    "executors.base.phase_engine.fold_threads._pool._starting": (None, "threads that start"),
    "executors.base.phase_engine.fold_threads._pool.waiting": (64, "threads without work"),
    "data.npy_file._HEADERS": (CONSTANT, "versions of the format"),
    "executors.leaf_executor._leaves_under": (100, "policies of this process's services"),
    "executors.concurrency.leaf_threads._light_threads._pool._jobs._items": (None, "calls that run"),
    "executors.concurrency.leaf_threads._light_threads._pool._held": (None, "owners whose work runs"),
    "executors.concurrency.leaf_threads._light_threads._pool._starting": (None, "threads that start"),
    "executors.concurrency.leaf_threads._light_threads._pool.waiting": (64, "threads without work"),
    "executors.concurrency.leaf_threads._threads._pool._jobs._items": (None, "calls that run"),
    "executors.concurrency.leaf_threads._threads._pool._held": (None, "owners whose work runs"),
    "executors.concurrency.leaf_threads._threads._pool._starting": (None, "threads that start"),
    "executors.concurrency.leaf_threads._threads._pool.waiting": (64, "threads without work"),
    "executors.remote.phase_messages._templates._items": (1000, "and 256 MiB; the client's"),
    "executors.sequence_executor._OPERATIONS": (CONSTANT, "intrinsics"),
    "executors.concurrency.thread_pool._serving.seats": (None, "what the current thread works at"),
    "executors.concurrency.thread_pool._pools": (None, "pools that are open"),
    "executors._MODULES": (CONSTANT, "names of modules"),
    "service._MODULES": (CONSTANT, "names of modules"),
    "service.data._MODULES": (CONSTANT, "names of modules"),
    "service.data.consumer.client_references.reader_of_this_process": (1, "takes no argument"),
    "service.data.consumer.distribute._REFUSED": (CONSTANT, "names of arguments"),
    "service.data.consumer.descriptions._NAMES": (CONSTANT, "names of policies"),
    "service.data.datasets.arrow_elements._NUMPY_NAMES": (CONSTANT, "dtypes"),
    "service.data.datasets.definitions._FILES": (CONSTANT, "formats of files"),
    "service.data.datasets.definitions._SOURCES": (CONSTANT, "kinds of sources"),
    "service.data.datasets.definitions._STEPS": (CONSTANT, "kinds of steps"),
    "service.data.datasets.definitions._WRITTEN_STEPS": (CONSTANT, "kinds of steps"),
    "service.data.datasets.sources._registered": (None, "generator functions that this process has registered"),
    "service.data.dispatcher.ledger._EVENTS": (CONSTANT, "statements of SQL"),
    "command_line.make_server._ONLY_BESIDE": (CONSTANT, "options"),
    "command_line.serve_options._GROUPS": (CONSTANT, "groups of options"),
    "command_line.serve_options._MORE": (CONSTANT, "options"),
    **{
        f"command_line.{name}_command.COMMAND.{kept}": (CONSTANT, "what a subcommand takes")
        for name in ("certs", "check", "demo", "explain_error", "runs", "serve", "status")
        for kept in ("context_settings", "params")
    },
    "service.host.host.servers_here._servers": (None, "servers of this process that have started"),
    "service.data.reading.local_reader.readers_here": (None, "data workers of this process that have started"),
    "service.rpc._MODULES": (CONSTANT, "names of modules"),
    "service.coordinator.variables._servers._items": (100, "servers of variables; of allowed code alone"),
    "service.executor.creations._OPERATIONS": (CONSTANT, "operations"),
    "service.host.calls.call_table.caller_at": (4096, "addresses"),
    "service.host.calls.call_router._scope_of": (1024, "connections"),
    "service.executor.executor_group._PLACEMENTS": (CONSTANT, "placements"),
    "transport.grpc.grpc_module._VARIABLES": (CONSTANT, "texts"),
    "transport.wire.status._CLASSES": (CONSTANT, "errors"),
    "transport.wire.status._CODES": (CONSTANT, "errors"),
    "transport.wire.status._MEANINGS": (CONSTANT, "errors"),
    "a service._core.abandoned._named": (None, "weakly: clients that took too long and run"),
    "a service._core._inside_leaves._options": (CONSTANT, "options"),
    "a service._core._inside_leaves._invoker._threads._pool._jobs._items": (None, "calls that run"),
    "a service._core._inside_leaves._invoker._threads._pool._held": (None, "owners whose work runs"),
    "a service._core._inside_leaves._invoker._threads._pool._starting": (None, "threads that start"),
    "a service._core._inside_leaves._invoker._threads._pool.waiting": (64, "threads without work"),
    "a service._core.admission.leaves._known._items": (1000, "and 128 MiB"),
    "a service._core.admission.leaves._turns": (None, "weakly: leaf computations that are being loaded"),
    "a service._core.admission._loading._pool._jobs._items": (None, "calls that run"),
    "a service._core.admission._loading._pool._held": (None, "owners whose work runs"),
    "a service._core.admission._loading._pool._starting": (None, "threads that start"),
    "a service._core.admission._loading._pool.waiting": (64, "threads without work"),
    "a service._core.factory._entries": (10, "max_executors"),
    "a service._core.factory._leased": (None, "sessions that are open"),
    "a service._core.running._sessions": (None, "weakly: calls that run"),
    "a service._core.sessions._leases._leases": (None, "sessions that are open: --max-sessions"),
    "a service._core.sessions._sessions": (None, "sessions that are open: --max-sessions"),
    "a service._core.sessions._shares._held": (None, "clients that have sessions"),
    "a service._core.sessions._shares._refused": (2, "the latest two"),
    "a server.call_counts._counts": (None, "methods of the server by 17 codes"),
    "a server._router._checks._gave_way": (None, "calls that run"),
    "a server._router._checks._shares._held": (None, "clients that call"),
    "a server._router._checks._shares._refused": (2, "the latest two"),
    "a server._router._checks.running": (None, "calls that run"),
    "a server._router._checks.silent": (None, "calls that run"),
    "a server._router._foreground._gave_way": (None, "calls that run"),
    "a server._router._foreground._shares._held": (None, "clients that call: --max-calls"),
    "a server._router._foreground._shares._refused": (2, "the latest two"),
    "a server._router._foreground.running": (None, "calls that run: --max-calls"),
    "a server._router._foreground.silent": (None, "calls that run: --max-calls"),
    "a server._router._log._failures._minutes": (1000, "addresses"),
    "a server._router._joins._gave_way": (None, "calls that run"),
    "a server._router._joins._shares._held": (None, "clients that call: --max-calls"),
    "a server._router._joins._shares._refused": (2, "the latest two"),
    "a server._router._joins.running": (None, "calls that run: --max-calls"),
    "a server._router._joins.silent": (None, "calls that run: --max-calls"),
    "a server._router._log._refusals._minutes": (1000, "addresses"),
    "a server._router._room._waiting": (None, "calls that run: --max-calls"),
    "a server._router._routes": (CONSTANT, "methods of the server"),
    "a server._router._watches._gave_way": (None, "calls that run"),
    "a server._router._watches._shares._held": (None, "clients that watch: --max-watches"),
    "a server._router._watches._shares._refused": (2, "the latest two"),
    "a server._router._watches.running": (None, "calls that run: --max-watches"),
    "a server._router._watches.silent": (None, "calls that run: --max-watches"),
    "a server._streams._arriving": (None, "connections: --max-connections"),
    "a server._streams._calls": (None, "calls that run: --max-calls"),
    "a server._streams._clients": (None, "connections: --max-connections"),
    "a server._streams._listeners": (CONSTANT, "addresses of the server"),
    "a server._streams._tickets._issued": (10_000, "tickets of the last seconds"),
    "a server._door._routes": (CONSTANT, "methods of the server"),
    "a server._door._wholes._kept": (None, "calls that run: --max-calls"),
}
_CACHED: type = type(functools.cache(len))
_KEEPERS = (MutableMapping, MutableSequence, MutableSet, collections.deque, _CACHED)


# These packages are not installed for every Python.
OPTIONAL = {
    "fedstack.demo": "matplotlib",
    "fedstack.observe.figures": "matplotlib",
    "fedstack.program.releases.mlflow_run": "mlflow",
    "fedstack.program.releases.event_file": "tensorboard",
    "fedstack.backends.ray_cluster": "ray",
}
NOT_SEARCHED = (
    "fedstack.proto",
    "fedstack.testing",
    *(name for name, needs in OPTIONAL.items() if not find_spec(needs)),
)


def modules() -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(fedstack.__path__, "fedstack."):
        if not info.name.startswith(NOT_SEARCHED) and not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def keepers(path: str, value: object, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields what can keep things in an object: in its own attributes, and in those of other objects of fedstack's."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, _KEEPERS):
        yield path, value
    elif type(value).__module__.startswith("fedstack.") and not isinstance(value, type):
        slots = [name for kind in type(value).__mro__ for name in names_in(vars(kind).get("__slots__", ()))]
        for name in [*getattr(value, "__dict__", {}), *slots]:
            if hasattr(value, name):
                yield from keepers(f"{path}.{name}", getattr(value, name), seen)


def names_in(slots: object) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)  # type: ignore[call-overload]


def all_keepers(*services: tuple[str, object]) -> dict[str, Any]:
    seen: set[int] = set()
    found: dict[str, Any] = {}
    for module in modules():
        for name, value in list(vars(module).items()):
            is_elsewhere = isinstance(value, _CACHED) and value.__module__ != module.__name__
            if not name.startswith("__") and not is_elsewhere:
                found.update(keepers(f"{module.__name__.partition('.')[2]}.{name}", value, seen))
    for path, service in services:
        found.update(keepers(path, service, seen))
    return found


def size_of(keeper: Any) -> int:
    return keeper.cache_info().currsize if isinstance(keeper, _CACHED) else len(keeper)


def bound_of(keeper: Any) -> int | None:
    return keeper.cache_info().maxsize if isinstance(keeper, _CACHED) else None


class Peer:
    """A client that sends bytes."""

    def __init__(self, service: ExecutorService) -> None:
        self._methods = service.methods[EXECUTOR_GROUP]
        self.executor = b""

    async def call(self, method: str, request: bytes) -> bytes:
        return await self._methods[method].handle(request)  # type: ignore[union-attr]

    async def open(self) -> None:
        answer = GetExecutorResponse.FromString(await self.call("GetExecutor", fb.get_executor(clients=1)))
        self.executor = answer.executor.id.encode()

    async def ref(self, method: str, request: bytes) -> bytes:
        # All answers of methods that create something are alike.
        return CreateValueResponse.FromString(await self.call(method, request)).value_ref.id.encode()

    async def end(self) -> None:
        await self.call("DisposeExecutor", fb.dispose_executor(self.executor))


def service_of(**limits: int) -> ExecutorService:
    policy = CarrierPolicy(modules=("no_such_module",))
    return ExecutorService(fedstack.local_executor_factory(), limits=ServiceLimits(**limits), policy=policy)


def test_everything_that_keeps_things_is_in_the_table() -> None:
    service = service_of()
    server = GrpcServer([service_of()])
    found = all_keepers(("a service", service), ("a server", server))
    unknown = {path: type(keeper).__name__ for path, keeper in found.items() if path not in TABLE}
    assert not unknown, "say in the table why they are bounded"
    searched = {path for path in TABLE if not f"fedstack.{path}".startswith(NOT_SEARCHED)}
    assert not searched - found.keys(), "these are gone"


def test_caches_of_functions_have_the_bound_that_the_table_says() -> None:
    for path, keeper in all_keepers().items():
        bound = bound_of(keeper)
        if isinstance(keeper, _CACHED):
            takes_none = keeper.__wrapped__.__code__.co_argcount == 0
            assert TABLE[path][0] == (1 if takes_none else bound), path


def hostile(index: int) -> list[bytes]:
    """Returns values with names that nobody has sent before: of members, types, functions, intrinsics, contents."""
    name = f"name_{index}".encode()
    struct = fb.struct_of((name, array(listed(FLOAT, [1]))), (b"other_" + name, fb.struct_of()))
    content = any_pb2.Any(type_url=f"type.googleapis.com/{name.decode()}", value=b"x")
    computation = computation_pb2.Computation(type=fl.FunctionType(INT, INT).to_proto())
    computation.data.content.CopyFrom(content)
    unknown = computation_pb2.Computation(type=computation.type)
    unknown.intrinsic.uri = name.decode()
    shape = fl.TensorType(np.float32, [index, 7])
    doubled = call_intrinsic("generic_plus", [reference("x", shape)] * 2, shape)
    function = function_of("x", shape, doubled)
    return [struct, *(fb.message(2, sent.SerializeToString()) for sent in (computation, unknown, function))]


@pytest.mark.long
async def test_what_clients_send_makes_nothing_grow_beyond_its_bound() -> None:
    service = service_of()
    names = ("a service", service)
    peer = Peer(service)

    async def send(indices: range) -> None:
        for index in indices:
            if index % 100 == 0:
                await peer.open()
            for value in hostile(index):
                with contextlib.suppress(FedstackError):
                    await peer.call("CreateValue", fb.create_value(peer.executor, value))
            if index % 100 == 99:
                await peer.end()

    await send(range(200))
    before = {path: size_of(keeper) for path, keeper in all_keepers(names).items()}
    await send(range(200, 1700))
    gc.collect()
    types = len(recent_types) + size_of(all_keepers()["computations.types.type_structure._types_by_bytes"]) + 1000 * 10
    for path, keeper in all_keepers(names).items():
        bound, why = TABLE[path]
        if "ends with it" in why:
            assert size_of(keeper) <= types, path
        elif bound is None:
            assert size_of(keeper) <= before[path], path
        else:
            assert size_of(keeper) <= bound, path
    await service.close()


def test_what_is_kept_for_a_type_ends_with_the_type() -> None:
    class Kept:
        """Something that can be referred to weakly."""

    release_unused_types()
    memo: TypeMemo[Kept] = TypeMemo()
    made = fl.StructType([("a_name_of_this_test", np.int32)])
    kept = weakref.ref(memo.put(made, Kept()))
    assert memo.get(made) is kept()
    gone = weakref.ref(made)
    del made
    recent_types.received(1 << 40)
    assert gone() is None
    assert kept() is None
    assert len(memo) == 0


def test_types_that_are_referred_to_stay_the_one_object_that_they_are() -> None:
    release_unused_types()
    made = fl.StructType([("another_name_of_this_test", np.int32), fl.SequenceType(np.float32)])
    recent_types.received(1 << 40)
    assert fl.StructType([("another_name_of_this_test", np.int32), fl.SequenceType(np.float32)]) is made
    assert type_from_proto(made.to_proto()) is made
    assert fields_of(made)[0] == ("another_name_of_this_test", INT)


def test_equal_types_that_are_two_objects_are_equal() -> None:
    """As where the language's own table was exchanged while somebody had a type of it."""
    spec = [("x", np.int32), ("y", fl.SequenceType([np.float32, (np.int8, [None])]))]
    one = fl.FunctionType(spec, fl.FederatedType(spec, fl.CLIENTS))
    pools = importlib.import_module("federated_language.types.computation_types")._intern_pool
    saved = {kind: dict(pool) for kind, pool in pools.items()}
    for pool in pools.values():
        pool.clear()
    other = fl.FunctionType(spec, fl.FederatedType(spec, fl.CLIENTS))
    for kind, pool in saved.items():
        pools[kind].update(pool)
    assert other is not one
    assert other == one
    assert hash(other) == hash(one)
    assert one.is_assignable_from(other)
    assert other.is_equivalent_to(one)


def resident_bytes() -> int:
    """Returns the memory of this process, where the system says it."""
    found = Path("/proc/self/statm")
    return int(found.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if found.exists() else 0


def known_types() -> int:
    return sum(map(len, importlib.import_module("federated_language.types.computation_types")._intern_pool.values()))


@pytest.mark.long
async def test_40_000_types_that_nobody_has_sent_before_leave_memory_as_it_was() -> None:
    service = service_of()
    peer = Peer(service)

    async def send(first: int, calls: int) -> None:
        for call in range(first, first + calls):
            await peer.open()
            members = [fb.struct_of((b"m%d_%d" % (call, k), array(listed(FLOAT, [1])))) for k in range(1000)]
            value = fb.struct_of(*((b"", member) for member in members))
            await peer.call("CreateValue", fb.create_value(peer.executor, value))
            await peer.end()
        gc.collect()

    await send(0, 10)
    types, before = known_types(), resident_bytes()
    await send(10, 40)
    assert known_types() <= types + 1000
    # They took 80 MB when the language kept them.
    assert resident_bytes() - before < 30 << 20
    await service.close()


async def test_types_with_long_names_are_let_go_of_by_their_bytes() -> None:
    service = service_of()
    peer = Peer(service)
    await peer.open()
    for index in range(200):
        struct = fb.struct_of((b"%d_" % index + b"n" * 1_000_000, array(listed(FLOAT, [1]))))
        await peer.call("CreateValue", fb.create_value(peer.executor, struct))
        await peer.call("DisposeExecutor", fb.dispose_executor(peer.executor))
        await peer.open()
    await peer.end()
    kept = [name for made in recent_types._types if isinstance(made, fl.StructType) for name, _ in made.items()]
    assert sum(len(name or "") for name in kept) <= 70 << 20
    await service.close()


@pytest.mark.parametrize("kind", ["struct", "type", "computation"])
async def test_names_that_are_longer_than_allowed_exhaust_a_resource(kind: str) -> None:
    service = service_of(max_name_bytes=10_000)
    peer = Peer(service)
    await peer.open()
    name = "n" * 10_001
    type_spec = fl.StructType([(name, np.float32)]).to_proto()
    values = {
        "struct": fb.struct_of((name.encode(), array(listed(FLOAT, [1])))),
        "type": fb.sequence(element_type=type_spec.SerializeToString()),
        "computation": fb.message(
            2,
            computation_pb2.Computation(
                type=INT.to_proto(), reference=computation_pb2.Reference(name=name)
            ).SerializeToString(),
        ),
    }
    with pytest.raises(ResourceLimitError, match="--max-name-bytes"):
        await peer.call("CreateValue", fb.create_value(peer.executor, values[kind]))
    await peer.end()
    await service.close()


async def test_a_name_that_comes_many_times_counts_once() -> None:
    """The type of a model comes with each reference to it."""
    service = service_of(max_name_bytes=2_000)
    peer = Peer(service)
    await peer.open()
    model = fl.StructType([("layer" * 100, np.float32)])
    whole = reference("x", model)
    total = call_intrinsic("generic_plus", [whole, whole], model)
    function = function_of("x", model, total)
    assert function.ByteSize() > 2_000
    await peer.call("CreateValue", fb.create_value(peer.executor, fb.message(2, function.SerializeToString())))
    await peer.end()
    await service.close()


def test_a_plan_counts_with_what_its_calls_unfold_to() -> None:
    def body(levels: int) -> computation_pb2.Computation:
        """Returns a function that doubles 2 ** levels times, in a message that grows by the level only."""
        function = function_of("x", INT, call_intrinsic("generic_plus", [reference("x", INT)] * 2, INT))
        for level in range(levels):
            name = f"f{level}"
            called = reference(name, fl.FunctionType(INT, INT))
            inner = computation_pb2.Computation(
                type=INT.to_proto(),
                call=computation_pb2.Call(function=called, argument=reference("y", INT)),
            )
            outer = computation_pb2.Computation(
                type=INT.to_proto(), call=computation_pb2.Call(function=called, argument=inner)
            )
            local = computation_pb2.Block.Local(name=name, value=function)
            block = computation_pb2.Block(local=[local], result=outer)
            function = function_of("y", INT, computation_pb2.Computation(type=INT.to_proto(), block=block))
        return function

    cache = PlanCache(max_plans=10, max_bytes=4 << 20)
    small, large = body(1), body(12)
    cache.plan_content(small)
    assert cache._by_content.bytes < 20_000
    cache.plan_content(large)
    assert large.ByteSize() < 20_000
    assert cache._by_content.bytes > 4 << 20
    assert len(cache) == 1


def test_a_content_that_nobody_knows_is_not_kept() -> None:
    before = len(leaf_runtimes._runtimes)
    for index in range(100):
        assert leaf_runtimes.find_runtime(f"some.Message{index}") is None
    assert len(leaf_runtimes._runtimes) == before


def test_a_bounded_cache_is_bounded_by_bytes_too() -> None:
    cache: BoundedCache[int, int] = BoundedCache(100, 1000)
    for index in range(50):
        cache.put(index, index, 100)
    assert len(cache) == 10


async def test_no_message_has_a_name_of_any_length_in_it() -> None:
    """Each was some megabytes, in the message, in the log and in what went back."""
    service = service_of(max_name_bytes=1 << 40)
    peer = Peer(service)
    name = "n" * 5_000_000
    type_spec = fl.FunctionType(INT, INT).to_proto()

    def leaf(content: Any) -> computation_pb2.Computation:
        computation = computation_pb2.Computation(type=type_spec)
        computation.data.content.Pack(content)
        return computation

    contents: list[Any] = [
        carriers_pb2.PickledPython(function=b"", python_version="3.0", name=name),
        carriers_pb2.PythonHandle(process="elsewhere", serial=1, name=name),
        carriers_pb2.PythonReference(module=name, qualname="f"),
        carriers_pb2.PythonReference(module="no_such_module", qualname=name),
        carriers_pb2.PythonReference(module=f"no_such_module.{name}", qualname="f"),
    ]
    other = computation_pb2.Computation(type=type_spec)
    other.data.content.type_url = f"type.googleapis.com/{name}"
    unbound = computation_pb2.Computation(type=INT.to_proto(), reference=computation_pb2.Reference(name=name))
    intrinsic = computation_pb2.Computation(type=type_spec, intrinsic=computation_pb2.Intrinsic(uri=name))
    sent = [fb.message(2, computation.SerializeToString()) for computation in [*map(leaf, contents), other, unbound]]
    sent += [fb.message(2, intrinsic.SerializeToString())]
    sent += [fb.federated(name.encode(), array(listed(FLOAT, [1])))]
    await peer.open()
    argument = await peer.ref("CreateValue", fb.create_value(peer.executor, array(listed(fb.INT32, [1]))))
    for value in sent:
        with pytest.raises(FedstackError) as caught:
            function = await peer.ref("CreateValue", fb.create_value(peer.executor, value))
            called = await peer.ref("CreateCall", fb.create_call(peer.executor, function, argument))
            await peer.call("Compute", fb.compute(peer.executor, called))
        assert len(str(caught.value)) < 2_000
    named = fb.struct_of((name.encode(), array(listed(FLOAT, [1]))))
    misfit = await peer.ref("CreateValue", fb.create_value(peer.executor, named))
    identity = function_of("x", INT, reference("x", INT)).SerializeToString()
    function = await peer.ref("CreateValue", fb.create_value(peer.executor, fb.message(2, identity)))
    with pytest.raises(FedstackError) as caught:
        await peer.call("CreateCall", fb.create_call(peer.executor, function, misfit))
    assert len(str(caught.value)) < 10_000
    await peer.end()
    await service.close()


def test_a_long_message_of_any_error_lacks_its_middle() -> None:
    error = InvalidComputationError("begin " + "x" * 1_000_000 + " end")
    assert len(str(error)) < 17_000
    assert str(error).startswith("begin ")
    assert str(error).endswith(" end")
