"""Without a sharding policy each worker reads all of a dataset: how many copies a consumer gets."""

from dispatching import AT_LEAST_ONCE, EXACTLY_ONCE, OFF, description
from hypothesis import given
from hypothesis import strategies as st

from fedstack.proto import data_service_pb2 as messages
from fedstack.proto.datasets_pb2 import DatasetStep
from fedstack.service.data.dispatcher import passes
from fedstack.service.data.dispatcher.journal import Journal
from fedstack.service.host.limits import DispatcherLimits

WORKERS = [b"u", b"v", b"w"]
EVENTS = st.lists(st.tuples(st.sampled_from(["join", "leave", "take", "give back"]), st.integers(0, 2)), max_size=30)
BATCH = DatasetStep(batch=DatasetStep.Batch(size=2))


@given(
    num_splits=st.integers(0, 12),
    events=EVENTS,
    guarantee=st.sampled_from([AT_LEAST_ONCE, EXACTLY_ONCE]),
    is_whole=st.booleans(),
)
def test_there_are_as_many_copies_as_workers_came_whoever_goes_and_whatever_is_given_back(
    num_splits: int, events: list[tuple[str, int]], guarantee: int, is_whole: bool
) -> None:
    dataset = description(num_splits=num_splits, after=[BATCH] if is_whole else [])
    journal = Journal()
    with journal.transaction() as tables:
        opened = passes.open_pass(
            tables,
            messages.OpenPassRequest(digest=dataset.digest, consumer=b"a", policy=OFF, guarantee=guarantee),
            dataset,
            DispatcherLimits(),
            places=0,
        )
    here: set[bytes] = set()
    came: set[bytes] = set()
    held: dict[int, messages.SplitRange] = {}
    read: list[messages.SplitRange] = []
    number = opened.next_number

    def take(finished: list[int], given_back: list[int]) -> bool:
        nonlocal number
        with journal.transaction() as tables:
            request = messages.TakeRequest(
                pass_id=opened.pass_id, consumer=b"a", number=number, want=2, finished=finished, given_back=given_back
            )
            answer = messages.TakeResponse.FromString(passes.take(tables, request, here, False).answer)
        number += 1
        read.extend(held.pop(id) for id in finished)
        for id in given_back:
            del held[id]
        for one in answer.range:
            assert one.whole == is_whole
            assert one.worker in here or not one.worker
            held[one.id] = one
        came.update(here)
        return answer.is_exhausted

    is_over = False
    for event, index in events:
        if event == "join":
            here = here if is_over else {*here, WORKERS[index]}
        elif event == "leave":
            here = here - {WORKERS[index]}
        elif event == "take":
            is_over = take(list(held)[:index], []) or is_over
        else:
            is_over = take([], list(held)[:index]) or is_over
    if not (came or here or is_over):
        assert not take([], [])
        here = {b"u"}
    while not take(list(held), []):
        pass
    take(list(held), [])
    if is_whole:
        assert [(one.first, one.last) for one in read] == [(0, num_splits)] * len(came)
    else:
        found = sorted(split for one in read for split in range(one.first, one.last))
        assert found == sorted(list(range(num_splits)) * len(came))
    journal.close()
