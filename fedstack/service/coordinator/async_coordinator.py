"""Defines the coordinator for programs with an event loop."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedstack.service.coordinator.front import Front
from fedstack.service.coordinator.remote_value import RemoteValue, fetched
from fedstack.service.coordinator.time_bounds import check_timeout
from fedstack.service.coordinator.variables.variable import AsyncVariable
from fedstack.transport.peers.io_loop import io_loop


class AsyncClusterCoordinator(Front):
    """Does what `ClusterCoordinator` does, in coroutines, from any event loop."""

    async def schedule(
        self,
        fn: object,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        *,
        repeatable: bool = True,
        prefetch: bool = False,
    ) -> RemoteValue:
        """Schedules a call; see `ClusterCoordinator.schedule`. It waits only if there is no room for one more."""
        closure, call = self._closures.closure(fn, args, kwargs, repeatable, prefetch)
        while not self._driver.schedule(closure):
            await self._driver.loop.run(self._driver.room())
        return RemoteValue(self, self._driver, closure, call)

    async def join(self, timeout: float | None = None) -> None:
        """Waits until all calls have ended; see `ClusterCoordinator.join`."""
        check_timeout(timeout)
        await self._driver.loop.run(self._driver.join(timeout, self))

    async def done(self) -> bool:
        """Returns whether all calls have ended; see `ClusterCoordinator.done`."""
        return self._driver.is_done()

    async def fetch(self, structure: object, timeout: float | None = None) -> Any:
        """Returns a structure with values in place of what stands for them; see `ClusterCoordinator.fetch`."""
        check_timeout(timeout)
        return await self._driver.loop.run(fetched(structure, timeout, self))

    async def variable(self, initial_value: object, type_spec: object = None) -> AsyncVariable:
        """Returns a variable; see `ClusterCoordinator.variable`."""
        return AsyncVariable(*await io_loop.run(self._variables.make(initial_value, type_spec)))
