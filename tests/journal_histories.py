"""What two consumers of a job do with a dispatcher that has a journal, with a copy of its folder after each step."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
from dispatching import EXACTLY_ONCE, Consumer, Peer

from fedstack.errors import FedstackError
from fedstack.proto import data_service_pb2 as messages
from fedstack.service.data import DispatcherConfig, DispatchServer

SPLITS = 300
NAMES = (b"a", b"b")


@attrs.frozen
class Place:
    """What a consumer would write into a cursor, and what it has had.

    Attributes:
      commit: The latest commit that it has heard of.
      finished: The ranges that it has read.
      had: The splits of them.
    """

    commit: messages.Commit
    finished: tuple[int, ...] = ()
    had: tuple[int, ...] = ()

    def after(self, commit: messages.Commit, ranges: Iterable[messages.SplitRange]) -> "Place":
        new = [one for one in ranges if one.id not in self.finished]
        had = (split for one in new for split in range(one.first, one.last))
        return Place(commit, (*self.finished, *(one.id for one in new)), (*self.had, *had))


@attrs.frozen
class Moment:
    """A copy of a journal, and where its consumers and its worker were.

    Attributes:
      folder: The copy.
      places: Where each consumer is.
      worker: The latest commit that the worker has heard of.
    """

    folder: Path
    places: Sequence[Place]
    worker: messages.Commit


def serving(folder: Path) -> DispatchServer:
    return DispatchServer(DispatcherConfig(protocol="grpc+local", work_dir=folder, fault_tolerant_mode=True))


def consumer(peer: Peer, digest: bytes, name: bytes, place: Place | None = None) -> Consumer:
    """Begins, or goes on from a place."""
    commit = None if place is None else place.commit
    return Consumer(
        peer, digest, name, job_name="shared", guarantee=EXACTLY_ONCE, resumes=place is not None, commit=commit
    )


def attend(peer: Peer, commit: messages.Commit | None = None) -> messages.Commit:
    worker = messages.DataWorkerAddress(worker=b"w", address="w.example:1")
    return peer.ask(lambda stub: stub.attend(messages.AttendRequest(worker=worker, commit=commit))).commit


def history(folder: Path, steps: int) -> tuple[bytes, Sequence[Moment]]:
    """Lets two consumers take in turns, at a dispatcher that is started again in the middle."""
    moments: list[Moment] = []
    here, places = folder / "here", [Place(messages.Commit()) for _ in NAMES]
    digest = b""
    for half in range(2):
        with serving(here) as server, Peer(server.target) as peer:
            worker = attend(peer)
            if half == 0:
                digest = peer.register(num_splits=SPLITS)
                consumers = [consumer(peer, digest, name) for name in NAMES]
            else:
                consumers = [consumer(peer, digest, name, place) for name, place in zip(NAMES, places, strict=True)]
            for step in range(steps // 2):
                turn = step % len(NAMES)
                answer = consumers[turn].take(1, places[turn].finished)
                places[turn] = places[turn].after(answer.commit, answer.range)
                worker = attend(peer, worker)
                copy = folder / f"after-{len(moments)}"
                shutil.copytree(here, copy)
                moments.append(Moment(copy, tuple(places), worker))
    return digest, moments


@attrs.frozen
class Outcome:
    """What has become of a pass.

    Attributes:
      had: The splits that each consumer has had.
      errors: What each was refused with, or `None`; a single error if the dispatcher did not start.
    """

    had: Sequence[Sequence[int]]
    errors: Sequence[Exception | None]

    @property
    def is_exact(self) -> bool:
        return sorted(split for some in self.had for split in some) == list(range(SPLITS))

    @property
    def is_refused(self) -> bool:
        """Whether all who were there have heard that something is wrong."""
        return None not in self.errors


def resumed(folder: Path, digest: bytes, places: Sequence[Place], worker: messages.Commit | None = None) -> Outcome:
    """Starts a dispatcher with a journal, and reads the rest of the pass with it."""
    had, errors = [place.had for place in places], [None for _ in places]
    found = Outcome([list(some) for some in had], list[Exception | None](errors))
    try:
        server = serving(folder)
    except FedstackError as error:
        return attrs.evolve(found, errors=[error])
    with server, Peer(server.target) as peer:
        consumers: list[Consumer | None] = []
        places = list(places)
        for index, (name, place) in enumerate(zip(NAMES, places, strict=False)):
            try:
                one = consumer(peer, digest, name, place)
                consumers.append(one)
                places[index] = place.after(one.opened.commit, one.opened.taken)
            except FedstackError as error:
                consumers.append(None)
                found.errors[index] = error  # type: ignore[index]
        if worker is not None:
            try:
                attend(peer, worker)
            except FedstackError:
                attend(peer)
        reading = {index: one for index, one in enumerate(consumers) if one is not None}
        while reading:
            for index, one in tuple(reading.items()):
                try:
                    answer = one.take(2, places[index].finished)
                    places[index] = places[index].after(answer.commit, answer.range)
                    if answer.is_exhausted:
                        del reading[index]
                except FedstackError as error:
                    found.errors[index] = error  # type: ignore[index]
                    del reading[index]
    return attrs.evolve(found, had=[place.had for place in places])
