"""The events themselves."""

import re
from pathlib import Path

import attrs
import pytest

import fedstack
from fedstack import observe
from fedstack.observe import Event
from fedstack.observe.events import PhaseEvent

SOURCES = [file.read_text(encoding="utf-8") for file in Path(fedstack.__file__).parent.rglob("*.py")]
KINDS = [kind for kind in vars(observe).values() if isinstance(kind, type) and issubclass(kind, Event)]
EVENTS = [kind for kind in KINDS if kind not in (Event, PhaseEvent)]
each_event = pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)


@each_event
def test_an_event_has_numbers_and_names_only(kind: type[Event]) -> None:
    assert {field.type for field in attrs.fields(kind)} <= {str, int, float, bool}


@each_event
def test_an_event_is_frozen_and_small(kind: type[Event]) -> None:
    assert "__slots__" in vars(kind)
    assert kind.__setattr__ is not object.__setattr__


@each_event
def test_each_event_is_told_of_somewhere(kind: type[Event]) -> None:
    assert any(re.search(rf"\b{kind.__name__}\(\s*(\*\*|\w+=)", source) for source in SOURCES)


def test_all_events_are_exported() -> None:
    def below(kind: type[Event]) -> set[type[Event]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    ours = {kind for kind in below(Event) if kind.__module__.startswith("fedstack.observe.")}
    assert ours - {PhaseEvent} == set(EVENTS) | {Event}
