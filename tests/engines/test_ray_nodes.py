"""Several nodes, in a cluster of its own, since other tests share one of a single node."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_a_node_that_joins_gets_work_and_what_one_that_is_killed_had_is_run_again(tmp_path) -> None:
    script = str(Path(__file__).parent / "ray_nodes_driver.py")
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    command = [sys.executable, script, str(tmp_path)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True, timeout=300)
    said = [line for line in run.stdout.splitlines() if line.startswith("driver: ")]  # Ray prints there too
    assert said == ["driver: 1 at first", "driver: 2 with the node that joined", "driver: the same bits, True"]
