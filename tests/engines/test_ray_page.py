"""What is written about Ray runs: pages, and the benchmark in its smallest size."""

import contextlib
import io
from pathlib import Path

import pytest
from pages import blocks_of

from benchmarks import ray_rounds
from benchmarks.harness import TINY

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's own, which it uses
@pytest.mark.parametrize("page", ["docs/engines.md"])
def test_every_block_about_ray_prints_what_the_page_says(page, cluster, monkeypatch) -> None:
    import ray

    monkeypatch.setattr(ray, "init", lambda: None)  # that is done
    first, *others = blocks_of((ROOT / page).read_text(encoding="utf-8"))
    of_ray = [block for block in others if block.imports("ray")]
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in (first, *of_ray):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block.source, "<block>", "exec"), namespace)
        assert block.prints(printed.getvalue()), printed.getvalue()
    assert of_ray


def test_the_benchmark_yields_measurements(cluster) -> None:
    mean, put, model, sent, stored = ray_rounds.run(TINY)
    assert "mean of 4" in mean.name
    assert put.used is not None
    assert put.used <= 1  # one copy in the object store
    assert "a model of" in model.name
    assert "data sent" in sent.name
    assert "ObjectRefs" in stored.name
