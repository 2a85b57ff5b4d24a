"""Makes sure that states of clients are not lost because a program no longer names them."""

from collections.abc import Mapping, Sequence

from fedstack.errors import InvalidValueError, ProgramStateError
from fedstack.program.states.staged_releases import StagedReleases


class DeclaredStates:
    """Which states of clients a program has.

    Args:
      releases: What it saves with its states. The list grows.
    """

    def __init__(self, releases: Sequence[StagedReleases]) -> None:
        self._releases = releases
        self._dropped: set[str] = set()

    def drop(self, name: str) -> None:
        """Allows that later versions are without some states; see `FileProgramStateManager.drop_client_states`."""
        if any(one.name == name for one in self._releases):
            raise InvalidValueError(
                f"Expected the name of states of clients that the program no longer has, found that this program has "
                f"declared them as {name!r}; do not declare them"
            )
        self._dropped.add(name)

    def check(self, last: Mapping[str, object], place: str) -> None:
        """Checks that the next version has the states of clients of the last one.

        Args:
          last: What was released with the last version.
          place: The last version, for messages.

        Raises:
          ProgramStateError: If it would lose some.
        """
        before = client_states_in(last)
        now = [one.name for one in self._releases if one.continues]
        if lost := [name for name in before if name not in now and name not in self._dropped]:
            raise ProgramStateError(
                f"Expected the states of clients named {', '.join(before)}, which {place} has, found "
                f"{', '.join(now) or 'none'}; declare them under these names, with Run.client_states or "
                f"ClientStates(name=...), or call drop_client_states({lost[0]!r}) of the state manager before the save "
                "to go on without them"
            )


def client_states_in(releases: Mapping[str, object]) -> list[str]:
    """Returns the names of the states of clients among what belongs to a version."""
    return [name for name, staged in releases.items() if isinstance(staged, dict) and "shards" in staged]
