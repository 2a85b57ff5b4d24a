"""A fleet of workers that are names only, and a clock that the test sets."""

import attrs

from fedstack.errors import AuthenticationError, WorkerUnavailableError
from fedstack.executors.remote.workers import Features, Worker
from fedstack.membership.members import Members

AWAY = WorkerUnavailableError("nobody listens there")
WRONG = AuthenticationError("another token")
ABLE = Features(phases=True)


@attrs.define
class Name:
    """All that a fleet needs of a stub."""

    address: str


class Clock:
    """A time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeMembers(Members[Worker]):
    """A fleet with a clock of its own."""

    def __init__(self, connect_seconds: float = 10.0) -> None:
        self.time = Clock()
        super().__init__(connect_seconds, self.time)

    def join(self, name: str, *, ready: bool = False, **options: object) -> Worker:
        """Adds a worker, which has been asked, and which may have answered."""
        worker = Worker(Name(name), **options)
        self.add(worker)
        assert worker in self.due()
        if ready:
            self.answered(worker)
        return worker

    def changes(self) -> list[tuple[str, str]]:
        """Returns which workers have come into which state."""
        return [(change.member.address, change.after.name) for change in self.take_changes()]
