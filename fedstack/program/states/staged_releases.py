"""What becomes visible together with the next state of a program."""

from collections.abc import Awaitable, Callable, Sequence


class StagedReleases:
    """The base class of what is a part of a program's states; see `FileProgramStateManager.release_with`.

    `mark` runs when `save` is called, and `staged` when its coroutine begins. The others run on any thread, but not at
    the same time.

    Attributes:
      continues: Whether the next version needs what was saved with the last one.
    """

    continues = False

    @property
    def name(self) -> str:
        """The name of the releases, which stays the same in later processes."""
        raise NotImplementedError

    def mark(self) -> object:
        """Returns what `staged` has to know about the moment at which `save` is called."""
        raise NotImplementedError

    def staged(self, mark: object) -> Callable[[], Awaitable[object]]:
        """Returns a function that waits for what is released with the state, and returns it as JSON.

        Args:
          mark: What `mark` has returned.
        """
        raise NotImplementedError

    def give_up(self, mark: object) -> None:
        """Drops what belongs to a state that cannot be saved, because a call that it needs has failed.

        Args:
          mark: What `mark` has returned.
        """

    def release_staged(self, staged: object) -> None:
        """Releases what `staged` has returned, once the state is saved."""
        raise NotImplementedError

    def restore(self, staged: object | None) -> None:
        """Continues from the state that was saved with what `staged` has returned; `None` if there is no state."""
        if staged is not None:
            self.release_staged(staged)

    def leave(self, version: int, staged: object | None) -> None:
        """Removes what was released with later versions than the one that was loaded, before the next one is saved.

        Args:
          version: The version that was loaded.
          staged: What `staged` has returned for it.
        """

    def keep(self, kept: Sequence[object]) -> None:
        """Removes what is of no use to any version that is kept.

        Args:
          kept: What `staged` has returned for each of them.
        """

    def unlock(self) -> None:
        """Lets other runs use what belongs to the releases. Idempotent."""
