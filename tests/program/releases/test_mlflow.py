"""Metrics in MLflow, in its own database and behind a server: runs that are resumed, servers that are away or slow."""

import asyncio
import logging
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from free_ports import free_port
from mlflow.entities import ViewType
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow_server import TrackingServer

from fedstack.errors import InvalidValueError
from fedstack.program import FileProgramStateManager, MLflowReleaseManager

LOGGER = "fedstack.program.releases.mlflow_release_manager"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's own client tries again for minutes before it reports an error."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(scope="module")
def store(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlAlchemyStore]:
    store = SqlAlchemyStore(database, str(tmp_path_factory.mktemp("artifacts")))
    yield store
    store._dispose_engine()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def server(store: SqlAlchemyStore) -> TrackingServer:
    return TrackingServer(store, free_port())


Make = Callable[..., MLflowReleaseManager]


@pytest.fixture
def make(name: str, server: TrackingServer) -> Iterator[Make]:
    made: list[MLflowReleaseManager] = []

    def make(**options: object) -> MLflowReleaseManager:
        given = {"experiment_name": "tests", "tracking_uri": server.uri, "close_timeout_s": 60.0, **options}
        made.append(MLflowReleaseManager(name, **given))
        return made[-1]

    yield make
    for manager in made:
        manager._sender._close_timeout_s = 0.0
        manager.close()


def release(manager: MLflowReleaseManager, *rounds: tuple[object, int]) -> None:
    for value, key in rounds:
        asyncio.run(manager.release(value, key))


def runs(store: SqlAlchemyStore, name: str) -> list:
    experiments = [one.experiment_id for one in store.search_experiments()]
    return list(store.search_runs(experiments, f"attributes.run_name = '{name}'", ViewType.ALL, 10))


def history(store: SqlAlchemyStore, name: str, metric: str) -> list[tuple[int, float]]:
    (run,) = runs(store, name)
    return sorted((one.step, one.value) for one in store.get_metric_history(run.info.run_id, metric))


def test_numbers_are_metrics_and_the_run_is_finished_in_the_end(make: Make, server, store, name: str) -> None:
    with server, make() as manager:
        value = {"train": {"loss": np.float32(0.5)}, "top@5": 1, "weights": np.zeros(3), "text": "x", "none": None}
        release(manager, (value, 1), ({"train": {"loss": 0.25}}, 2))
        manager.close()
    assert history(store, name, "train/loss") == [(1, 0.5), (2, 0.25)]
    (run,) = runs(store, name)
    assert run.data.metrics.keys() == {"train/loss", "top_5"}
    assert run.info.status == "FINISHED"


def test_it_writes_to_a_database_of_mlflow(make: Make, database: str, store, name: str) -> None:
    release(manager := make(tracking_uri=database), ({"loss": 0.5}, 1))
    manager.close()
    assert history(store, name, "loss") == [(1, 0.5)]


def test_a_later_process_goes_on_with_the_same_run_and_sends_nothing_twice(make: Make, server, store, name) -> None:
    values = {1: 0.5, 2: math.nan, 3: math.inf, 4: 0.25}
    with server:
        release(first := make(), *(({"loss": values[key]}, key) for key in (1, 2, 3)))
        first.close()
        release(second := make(), *(({"loss": values[key]}, key) for key in (2, 3, 4)))
        second.close()
    found = history(store, name, "loss")
    assert [step for step, _ in found] == [1, 2, 3, 4]
    assert [found[0][1], found[3][1]] == [0.5, 0.25]
    assert server.calls["runs/create"] == 1
    assert server.calls["metrics/get-history"] == 1


def test_a_run_of_others_is_used_by_its_id_and_not_ended(make: Make, server, store, name) -> None:
    experiment = store.create_experiment(f"of {name}")
    run = store.create_run(experiment, "me", 0, [], name)
    with server:
        release(manager := make(run_id=run.info.run_id), ({"loss": 0.5}, 1))
        manager.close()
    assert history(store, name, "loss") == [(1, 0.5)]
    assert store.get_run(run.info.run_id).info.status == "RUNNING"


def test_while_mlflow_is_away_the_program_goes_on_and_is_warned_once(
    make: Make, server, store, name, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    manager = make()
    release(manager, *(({"loss": key}, key) for key in range(1, 4)))
    warned = threading.Event()
    caplog.handler.addFilter(lambda record: warned.set() or True)
    if not caplog.records:
        assert warned.wait(60)
    release(manager, ({"loss": 4}, 4))
    with server:  # it is back
        manager.close()
    assert history(store, name, "loss") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    texts = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(texts) == 2
    assert texts[0].startswith("Cannot send values to MLflow: ")
    assert texts[1] == "MLflow is back"


def test_a_release_does_not_wait_for_a_server_that_hangs(make: Make, server, store, name) -> None:
    server.hangs.clear()
    with server:
        manager = make()
        release(manager, ({"loss": 1}, 1))
        assert server.called.wait(60)
        release(manager, ({"loss": 2}, 2))  # returns although no call of the server has
        assert server.calls.total() == 1
        server.hangs.set()
        manager.close()
    assert history(store, name, "loss") == [(1, 1), (2, 2)]


def test_a_server_that_is_full_gets_the_values_later(make: Make, server, store, name) -> None:
    with server:
        manager = make()
        server.failing = 507
        release(manager, ({"loss": 1}, 1))
        assert server.called.wait(60)
        server.failing = 0
        manager.close()
    assert history(store, name, "loss") == [(1, 1)]


def test_values_that_were_not_sent_are_part_of_the_state(make: Make, server, store, name, tmp_path: Path) -> None:
    states = FileProgramStateManager(tmp_path)
    manager = make(state_manager=states, close_timeout_s=0.0)
    for key in (1, 2, 3):  # nobody is there
        release(manager, ({"loss": key, "bad": math.nan}, key))
        asyncio.run(states.save(key, key))
    release(manager, ({"loss": 9}, 4))  # without a state
    assert [row[0] for row in asyncio.run(manager.staged(manager.mark())())] == [1, 2, 3, 4]
    manager.close()
    assert manager._sender._idle.wait(60)  # what it was about to send would begin a run at the server below
    states.close()

    later = FileProgramStateManager(tmp_path)
    resumed = make(state_manager=later)
    with server:
        asyncio.run(later.load_latest(0))
        resumed.close()
    assert history(store, name, "loss") == [(1, 1), (2, 2), (3, 3)]


def test_values_that_cannot_be_sent_until_the_end_are_counted(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    manager = make(close_timeout_s=0.1)
    release(manager, ({"loss": 1}, 1), ({"loss": 2}, 2))
    manager.close()
    manager.close()
    told = caplog.messages[-1]
    assert re.match(r"MLflow did not take what was released to the run '.*' at http://.*:\d+, in 2 releases: .", told)
    assert told.endswith(". It is lost")


def test_the_oldest_values_are_dropped_when_too_many_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(f"{LOGGER}._MOST_UNSENT", 3)
    manager = make()
    release(manager, *(({"loss": key}, key) for key in range(6)))
    assert [row[0] for row in asyncio.run(manager.staged(manager.mark())())] == [3, 4, 5]
    assert sum("the oldest are dropped" in text for text in caplog.messages) == 1


def test_what_mlflow_refuses_is_left_out_with_a_warning(
    make: Make, server, store, name, caplog: pytest.LogCaptureFixture
) -> None:
    with server:
        release(manager := make(), ({"x" * 300: 1}, 1), ({"loss": 2}, 2), ({"loss": 3, "../up": 4, "x" * 300: 5}, 3))
        release(manager, ({"loss": 6, "../up": 7}, 4))
        manager.close()
    assert history(store, name, "loss") == [(2, 2), (3, 3), (4, 6)]
    assert sum("MLflow refuses the metric 'xxx" in text for text in caplog.messages) == 2
    assert (
        sum("MLflow refuses the metric '../up' of step 3, which is left out" in text for text in caplog.messages) == 1
    )


def test_of_metrics_that_mlflow_would_call_the_same_the_first_is_kept(
    make: Make, server, store, name, caplog: pytest.LogCaptureFixture
) -> None:
    with server:
        release(manager := make(), ({"acc%": 1, "acc$": 2, "loss": 3}, 1), ({"acc%": 4, "acc$": 5}, 2))
        manager.close()
    assert history(store, name, "acc_") == [(1, 2), (2, 5)]
    assert history(store, name, "loss") == [(1, 3)]
    assert sum("metrics 'acc$' and 'acc%' are both called 'acc_'" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("bad", ["", "it's"])
def test_a_name_that_mlflow_cannot_find_again_is_refused(bad: str) -> None:
    with pytest.raises(InvalidValueError, match="Expected a run_name without apostrophes"):
        MLflowReleaseManager(bad)


@pytest.mark.parametrize("key", [None, "last", 2**63])
def test_steps_of_a_run_are_whole_numbers(make: Make, key: object) -> None:
    with pytest.raises(InvalidValueError, match="Expected a whole number of 64 bits as a key"):
        asyncio.run(make().release({"x": 1}, key))


def test_without_mlflow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=re.escape('pip install "fedstack[mlflow]"')):
        MLflowReleaseManager("run")
