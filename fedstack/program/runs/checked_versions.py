"""Checks the newest version of a run with all that belongs to it, without reading much."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedstack.data.client_states.state_shards import SUFFIX, FileShard
from fedstack.data.client_states.store_folders import opened_shard
from fedstack.errors import FedstackError, ProgramStateError
from fedstack.program.runs.compared_client_states import client_states_in
from fedstack.program.states.state_file import check_state

# Of a state, and of each of its states of clients, no more than this is read. Headers and sizes are always checked.
_MOST_READ = 64 << 20


def check_version(run: Path, path: Path) -> None:
    """Checks that a version can be loaded: its header, its size, and the files of clients' states that belong to it.

    The checksums of values are checked, too, if there are not too many bytes.

    Args:
      run: The folder of the run.
      path: The file of the version.

    Raises:
      ProgramStateError: If it cannot be loaded.
    """
    try:
        releases = check_state(path, _MOST_READ)
        for name in client_states_in(releases):
            found = cast("Mapping[str, Any]", releases[name])["shards"]
            # Those in memory are gone with their process.
            shards = [opened_shard(run / name, file, digest) for file, digest in found if file.endswith(SUFFIX)]
            _check_records(shards)
    except (FedstackError, FileNotFoundError) as error:
        if not path.exists():  # a run that goes on removes old versions
            return
        raise error if isinstance(error, ProgramStateError) else ProgramStateError(str(error)) from error


def _check_records(shards: list[FileShard]) -> None:
    left = _MOST_READ
    for shard in shards:
        left -= shard.size * len(shard.client_ids)
        if left >= 0:
            shard.read(np.arange(len(shard.client_ids)))
