"""Makes stacks over a pool of processes that the user has."""

from concurrent.futures import Executor

from fedstack.backends.backend_factory import BackendExecutorFactory
from fedstack.backends.pool_backend import MakesExecutor, PoolBackend
from fedstack.executors.data_executor import DataBackend
from fedstack.foundations.public_names import takes_options


@takes_options()
def pool_executor_factory(
    executor: Executor | MakesExecutor,
    num_workers: int | None = None,
    default_num_clients: int = 0,
    max_fanout: int = 100,
    *,
    max_concurrent_clients: int | None = None,
    data_backend: DataBackend | None = None,
) -> BackendExecutorFactory:
    """Returns a factory of stacks that run the work of clients in a pool of processes, and the server's work here.

    Whoever can give the pool work can run any code in it, so functions may come by value.

    Args:
      executor: The pool: a `ProcessPoolExecutor`, Dask's `client.get_executor()`, an `MPIPoolExecutor`, any executor of
        `concurrent.futures`. It stays its user's. Or a function that makes one: it is called for the first phase, and
        again after a pool has broken; such pools are shut down with the factory.
      num_workers: How many parts to cut a phase into; by default as many as the pool says that it has workers.
      default_num_clients: The number of clients of computations whose arguments do not tell.
      max_fanout: The most children of one composing executor.
      max_concurrent_clients: The most functions that run at the same time in a process; by default as in a local stack.
      data_backend: Resolves `data` blocks at the server that are not functions.

    Raises:
      InvalidValueError: If a number is out of its range, or the pool does not say how many workers it has.
    """
    return BackendExecutorFactory(
        PoolBackend(executor, num_workers),
        default_num_clients,
        max_fanout,
        max_concurrent_clients=max_concurrent_clients,
        data_backend=data_backend,
    )
