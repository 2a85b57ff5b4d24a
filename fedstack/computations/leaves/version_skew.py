"""Tells the caller of functions whose module is of another version at the worker.

What such a function uses of its module, constants and helpers, may differ, and a result with it. The worker notices
when it loads the function, and says so in the answer to each request that brings it; the caller warns once a module.
"""

import logging
import sys
from collections.abc import Iterable, Sequence

from fedstack.computations.leaves.leaf_runtimes import LoadedLeaves
from fedstack.computations.leaves.portability import leaves_of
from fedstack.computations.types.language import computation_pb2

_logger = logging.getLogger(__name__)
_told = set[str]()


def differing_modules(computations: Iterable[computation_pb2.Computation], loaded: LoadedLeaves) -> Sequence[str]:
    """Lists the modules of functions in computations whose sender has another version.

    Args:
      computations: What was received.
      loaded: Has the functions in it.
    """
    if not loaded.some_differ:
        return ()
    leaves = [loaded.find(leaf) for computation in computations for leaf in leaves_of(computation)]
    return sorted({leaf.differing_module for leaf in leaves if leaf is not None and leaf.differing_module})


def warn_of_differing(modules: Iterable[str], address: str) -> None:
    """Warns of modules that a worker has in another version, of each once.

    Args:
      modules: Their names, as the worker at `address` says; what is no module of this process is left out.
      address: Where it is.
    """
    for module in modules:
        if module in sys.modules and module not in _told:
            _told.add(module)
            _logger.warning(
                "The module %s at the worker at %s differs from the one here: helpers and constants of its functions "
                "may give other results there; install the same version on both sides (a worker that was started with "
                "--strict-modules refuses such functions)",
                module,
                address,
            )
