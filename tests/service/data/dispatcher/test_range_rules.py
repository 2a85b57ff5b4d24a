"""The rules by which splits are handed out, whatever consumers do, and however often they say it."""

import shutil
import tempfile
from pathlib import Path

import attrs
from dispatching import AT_LEAST_ONCE, AT_MOST_ONCE, DYNAMIC, EXACTLY_ONCE, description
from example_counts import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedstack.proto import data_service_pb2 as messages
from fedstack.service.data.dispatcher import passes
from fedstack.service.data.dispatcher.journal import FILE, Journal
from fedstack.service.host.limits import DispatcherLimits

LIMITS = DispatcherLimits()
WORKERS = {b"v": "v:1", b"w": "w:1"}


@attrs.define
class Known:
    """What a consumer knows."""

    name: bytes
    number: int = 0
    held: dict[int, range] = attrs.field(factory=dict)
    finished: dict[int, range] = attrs.field(factory=dict)
    last: messages.TakeRequest | None = None
    answer: list[messages.SplitRange] = attrs.field(factory=list)
    is_here: bool = True


class RangeRules(RuleBasedStateMachine):
    """Consumers take part in a pass of one job, in any order."""

    names = Bundle("names")
    folder: Path | None = None

    @initialize(
        num_splits=st.integers(0, 60),
        guarantee=st.sampled_from([AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE]),
    )
    def begin(self, num_splits: int, guarantee: int) -> None:
        self.journal = Journal(self.folder)
        self.guarantee = guarantee
        self.dataset = description(num_splits=num_splits)
        self.consumers: dict[bytes, Known] = {}
        # Who has which split; what has been read to its end; what is lost with its consumer.
        self.holders: dict[int, bytes] = {}
        self.read: set[int] = set()
        self.gone: set[int] = set()
        self.pass_id = b""

    def ask(self, request: messages.OpenPassRequest) -> messages.OpenPassResponse:
        with self.journal.transaction() as tables:
            return passes.open_pass(tables, request, self.dataset, LIMITS, places=0)

    @rule(target=names, name=st.sampled_from([b"a", b"b", b"c"]), resumes=st.booleans())
    def open(self, name: bytes, resumes: bool) -> bytes:
        known = self.consumers.get(name)
        resumes = resumes and known is not None and self.guarantee == EXACTLY_ONCE
        opened = self.ask(
            messages.OpenPassRequest(
                digest=self.dataset.digest,
                job_name="shared",
                policy=DYNAMIC,
                guarantee=self.guarantee,
                consumer=name,
                resumes=resumes,
            )
        )
        assert self.pass_id in (b"", opened.pass_id)
        self.pass_id = opened.pass_id
        if known is None or not known.is_here:
            kept = known if known is not None and self.guarantee == EXACTLY_ONCE else Known(name)
            self.consumers[name] = known = kept
            known.is_here = True
        if resumes:
            known.last = None
        taken = {one.id: one for one in opened.taken}
        assert {id for id, one in taken.items() if not one.is_finished} == known.held.keys()
        if self.guarantee == EXACTLY_ONCE:
            assert {id for id, one in taken.items() if one.is_finished} == known.finished.keys()
        known.number = opened.next_number
        return name

    @rule(name=names, want=st.integers(0, 4), data=st.data(), may_wait=st.booleans(), waits=st.booleans())
    def take(self, name: bytes, want: int, data: st.DataObject, may_wait: bool, waits: bool) -> None:
        known = self.consumers[name]
        if not known.is_here:
            return
        ids = st.lists(st.sampled_from(sorted(known.held)), unique=True) if known.held else st.just([])
        finished, given_back = set(data.draw(ids)), set(data.draw(ids))
        given_back -= finished
        # What has been said before changes nothing.
        said = data.draw(st.lists(st.sampled_from(sorted(known.finished)), unique=True)) if known.finished else []
        request = messages.TakeRequest(
            pass_id=self.pass_id,
            consumer=name,
            number=known.number,
            want=want,
            finished=[*finished, *said],
            given_back=[*given_back, *said],
            waits=waits,
        )
        for id in finished:
            known.finished[id] = known.held.pop(id)
            self.read.update(known.finished[id])
        for id in given_back:
            for split in known.held.pop(id):
                del self.holders[split]
        taken = self.send(request, may_wait)
        known.number += 1
        if taken.is_empty and may_wait:
            return
        known.last = request
        known.answer = list(messages.TakeResponse.FromString(taken.answer).range)
        self.receive(known)

    def receive(self, known: Known) -> None:
        for one in known.answer:
            splits = range(one.first, one.last)
            assert splits
            assert one.id not in known.held
            for split in splits:
                assert split not in self.holders, "somebody has it"
                assert split not in self.read, "it has been read"
                assert split not in self.gone, "it is lost"
                self.holders[split] = known.name
            known.held[one.id] = splits

    def send(self, request: messages.TakeRequest, may_wait: bool = False) -> passes.Taken:
        with self.journal.transaction() as tables:
            return passes.take(tables, request, WORKERS, may_wait)

    @rule(name=names)
    def repeat(self, name: bytes) -> None:
        known = self.consumers[name]
        if known.is_here and known.last is not None and known.last.want:
            again = messages.TakeResponse.FromString(self.send(known.last).answer)
            assert list(again.range) == known.answer

    @rule(name=names, leaves=st.booleans())
    def lose(self, name: bytes, leaves: bool) -> None:
        known = self.consumers[name]
        if not known.is_here:
            return
        with self.journal.transaction() as tables:
            if leaves:
                passes.release(tables, messages.ReleasePassRequest(pass_id=self.pass_id, consumer=name), 0.0)
            else:
                passes.lose_consumer(tables, self.pass_id, name, 0.0)
        known.is_here = False
        if self.guarantee == EXACTLY_ONCE:
            return
        for splits in known.held.values():
            for split in splits:
                del self.holders[split]
                if self.guarantee == AT_MOST_ONCE:
                    self.gone.add(split)
        known.held.clear()

    @precondition(lambda self: self.folder is not None)
    @rule()
    def crash(self) -> None:
        """Begins anew with what a crash at this moment would leave."""
        assert self.folder is not None
        left = Path(tempfile.mkdtemp(dir=self.folder.parent))
        for file in self.folder.glob(f"{FILE}*"):
            shutil.copy(file, left)
        self.journal.close()
        self.folder = left
        before = self.journal.commit
        self.journal = Journal(left)
        assert self.journal.commit == before

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if not self.pass_id:
            return
        with self.journal.transaction() as tables:
            uncut = tables.execute("SELECT next, last FROM lists").fetchall()
            free = tables.execute("SELECT first, last FROM ranges WHERE consumer IS NULL").fetchall()
        left = [split for first, last in [*uncut, *free] for split in range(first, last)]
        everything = [*left, *self.holders, *self.gone, *(self.read - self.holders.keys())]
        assert sorted(everything) == list(range(self.dataset.num_splits))

    def teardown(self) -> None:
        """One consumer reads the rest, and then it is over."""
        if not hasattr(self, "journal"):
            return
        for name in list(self.consumers):
            if name != b"a":
                self.lose(name, False)
        self.open(b"a", False)
        known = self.consumers[b"a"]
        for _ in range(1000):
            finished = list(known.held)
            request = messages.TakeRequest(
                pass_id=self.pass_id, consumer=b"a", number=known.number, want=3, finished=finished
            )
            for id in finished:
                known.finished[id] = known.held.pop(id)
                self.read.update(known.finished[id])
            answer = messages.TakeResponse.FromString(self.send(request).answer)
            known.number += 1
            known.answer = list(answer.range)
            self.receive(known)
            if answer.is_exhausted:
                break
        assert answer.is_exhausted
        assert {*self.holders, *self.read, *self.gone} == set(range(self.dataset.num_splits))
        if self.guarantee == AT_LEAST_ONCE:
            assert not self.gone
        self.journal.close()


class RangeRulesAcrossCrashes(RangeRules):
    """The same, with a journal that is used again after crashes."""

    def begin_folder(self) -> None:
        self.folder = Path(tempfile.mkdtemp()) / "first"

    def __init__(self) -> None:
        super().__init__()
        self.begin_folder()

    def teardown(self) -> None:
        super().teardown()
        assert self.folder is not None
        shutil.rmtree(self.folder.parent)


TestRangeRules = RangeRules.TestCase
TestRangeRules.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestRangeRulesAcrossCrashes = RangeRulesAcrossCrashes.TestCase
TestRangeRulesAcrossCrashes.settings = settings(max_examples=examples(8), stateful_step_count=30)
