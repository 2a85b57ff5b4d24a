"""fedstack is a runtime for Federated Language: it executes federated computations.

Computations are written with `federated_language`. This package provides leaf computations (`python_computation`),
execution contexts in which computations run, and the executors that make up a context (`fedstack.executors`).
"""

from fedstack import errors as errors
from fedstack import leaves as leaves
from fedstack import observe as observe
from fedstack import service as service
from fedstack._version import __version__ as __version__
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
from fedstack.contexts.explain import explain
from fedstack.contexts.in_force import use_context
from fedstack.contexts.local_contexts import (
    LocalOptions,
    create_async_local_execution_context,
    create_sync_local_execution_context,
    set_async_local_execution_context,
    set_sync_local_execution_context,
)
from fedstack.data.client_data import batches, client_seeds, from_generator
from fedstack.data.client_tables import by_client
from fedstack.errors import FedstackError
from fedstack.executors.factories import local_executor_factory, sizing_executor_factory
from fedstack.executors.survivors.client_failures import ClientFailure, ClientFailures
from fedstack.executors.survivors.outcomes import ClientOutcomes, client_outcomes
from fedstack.transport.grpc.credentials import ClientCredentials
from fedstack.transport.peers.retry import RetryPolicy

__all__ = [
    "ClientCredentials",
    "ClientFailure",
    "ClientFailures",
    "ClientOutcomes",
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
    "use_context",
]
