"""fedstack is a runtime for Federated Language: it executes federated computations.

Computations are written with `federated_language`. This package provides leaf computations (`python_computation`),
execution contexts in which computations run, and the executors that make up a context (`fedstack.executors`).

The names are imported when they are first asked for, so that a program loads only what it uses.
"""

from typing import TYPE_CHECKING

from fedstack import errors as errors
from fedstack import leaves as leaves  # registers the runtime of Python functions
from fedstack._version import __version__ as __version__
from fedstack.computations.types.uncaught_errors import explain_uncaught_errors as _explain_uncaught_errors
from fedstack.foundations.public_names import lazy_names

if TYPE_CHECKING:
    from fedstack import observe as observe
    from fedstack import service as service
    from fedstack.backends.pool_backend import pool_executor_factory
    from fedstack.backends.ray_cluster.ray_contexts import (
        create_async_ray_execution_context,
        create_sync_ray_execution_context,
        ray_executor_factory,
        set_async_ray_execution_context,
        set_sync_ray_execution_context,
    )
    from fedstack.backends.remote_contexts import (
        RemoteOptions,
        create_async_remote_execution_context,
        create_sync_remote_execution_context,
        remote_executor_factory,
        set_async_remote_execution_context,
        set_sync_remote_execution_context,
    )
    from fedstack.computations.leaves.leaf_runtimes import register_leaf_runtime
    from fedstack.computations.leaves.python_computation import python_computation
    from fedstack.computations.leaves.xla.jax_computation import jax_computation
    from fedstack.computations.values.example_types import type_of
    from fedstack.contexts.explain import explain
    from fedstack.contexts.in_force import use_context
    from fedstack.contexts.local_contexts import (
        LocalOptions,
        create_async_local_execution_context,
        create_sync_local_execution_context,
        set_async_local_execution_context,
        set_sync_local_execution_context,
    )
    from fedstack.data.client_data import batches, from_generator
    from fedstack.data.client_seeds import client_seeds
    from fedstack.data.client_tables import by_client
    from fedstack.errors import FedstackError
    from fedstack.executors.factories import local_executor_factory, sizing_executor_factory
    from fedstack.executors.survivors.client_failures import ClientFailure, ClientFailures
    from fedstack.executors.survivors.outcomes import ClientOutcomes, client_outcomes
    from fedstack.program.clients.client_states import ClientStates
    from fedstack.transport.grpc.credentials import ClientCredentials
    from fedstack.transport.peers.retry import RetryPolicy

__all__ = [
    "ClientCredentials",
    "ClientFailure",
    "ClientFailures",
    "ClientOutcomes",
    "ClientStates",
    "FedstackError",
    "LocalOptions",
    "RemoteOptions",
    "RetryPolicy",
    "__version__",
    "batches",
    "by_client",
    "client_outcomes",
    "client_seeds",
    "create_async_local_execution_context",
    "create_async_ray_execution_context",
    "create_async_remote_execution_context",
    "create_sync_local_execution_context",
    "create_sync_ray_execution_context",
    "create_sync_remote_execution_context",
    "explain",
    "from_generator",
    "jax_computation",
    "local_executor_factory",
    "pool_executor_factory",
    "python_computation",
    "ray_executor_factory",
    "register_leaf_runtime",
    "remote_executor_factory",
    "set_async_local_execution_context",
    "set_async_ray_execution_context",
    "set_async_remote_execution_context",
    "set_sync_local_execution_context",
    "set_sync_ray_execution_context",
    "set_sync_remote_execution_context",
    "sizing_executor_factory",
    "type_of",
    "use_context",
]

_MODULES = {
    "ClientCredentials": "transport.grpc.credentials",
    "ClientFailure": "executors.survivors.client_failures",
    "ClientFailures": "executors.survivors.client_failures",
    "ClientOutcomes": "executors.survivors.outcomes",
    "ClientStates": "program.clients.client_states",
    "FedstackError": "errors",
    "LocalOptions": "contexts.local_contexts",
    "RemoteOptions": "backends.remote_contexts",
    "RetryPolicy": "transport.peers.retry",
    "batches": "data.client_data",
    "by_client": "data.client_tables",
    "client_outcomes": "executors.survivors.outcomes",
    "client_seeds": "data.client_seeds",
    "create_async_local_execution_context": "contexts.local_contexts",
    "create_async_ray_execution_context": "backends.ray_cluster.ray_contexts",
    "create_async_remote_execution_context": "backends.remote_contexts",
    "create_sync_local_execution_context": "contexts.local_contexts",
    "create_sync_ray_execution_context": "backends.ray_cluster.ray_contexts",
    "create_sync_remote_execution_context": "backends.remote_contexts",
    "explain": "contexts.explain",
    "from_generator": "data.client_data",
    "local_executor_factory": "executors.factories",
    "pool_executor_factory": "backends.pool_backend",
    "jax_computation": "computations.leaves.xla.jax_computation",
    "python_computation": "computations.leaves.python_computation",
    "ray_executor_factory": "backends.ray_cluster.ray_contexts",
    "register_leaf_runtime": "computations.leaves.leaf_runtimes",
    "remote_executor_factory": "backends.remote_contexts",
    "set_async_local_execution_context": "contexts.local_contexts",
    "set_async_ray_execution_context": "backends.ray_cluster.ray_contexts",
    "set_async_remote_execution_context": "backends.remote_contexts",
    "set_sync_local_execution_context": "contexts.local_contexts",
    "set_sync_ray_execution_context": "backends.ray_cluster.ray_contexts",
    "set_sync_remote_execution_context": "backends.remote_contexts",
    "sizing_executor_factory": "executors.factories",
    "type_of": "computations.values.example_types",
    "use_context": "contexts.in_force",
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, ["observe", "service"])
_explain_uncaught_errors()
