"""Binds a folder with states of clients to the states of the program that they belong to.

Both folders have the same id, which their copies keep. Folders from before there were ids get them.
"""

from pathlib import Path

from fedstack.data.client_states.shard_head import may_be_shard
from fedstack.data.client_states.state_shards import SUFFIX
from fedstack.data.folder_ids import read_id, write_id
from fedstack.errors import ProgramStateError
from fedstack.program.states.file_program_state_manager import FileProgramStateManager

_OWNER = ".program"


def check_owner(folder: Path, manager: FileProgramStateManager) -> None:
    """Checks that a folder belongs to a program, or to none. Changes nothing.

    Args:
      folder: The folder.
      manager: The state manager of the program.

    Raises:
      ProgramStateError: If it belongs to another one, or has states of clients that no version has.
    """
    owner = read_id(folder / _OWNER)
    if owner is not None and owner != manager.program_id.read():
        raise ProgramStateError(
            f"Expected a folder for states of clients of the program whose states are in {manager.folder}, found "
            f"{folder}, which belongs to another program; choose another folder, or remove it if nobody needs it. If "
            f"they belong together, and were copied without hidden files, remove {folder / _OWNER}"
        )
    if owner is None and any(folder.glob(f"*{SUFFIX}")) and not manager.has_versions():
        raise ProgramStateError(
            f"Expected no states of clients in {folder} for a new program, found some that belong to no version in "
            f"{manager.folder}; choose another folder, or remove it if nobody needs it"
        )


def check_files(folder: Path) -> None:
    """Checks that fedstack has written the files in a folder that are named like files of clients' states.

    Raises:
      ProgramStateError: If not.
    """
    for path in folder.glob(f"*{SUFFIX}"):
        if not may_be_shard(path):
            raise ProgramStateError(
                f"Expected files of clients' states with the ending {SUFFIX} in {folder}, found {path.name}, which "
                "fedstack has not written; move it, or choose another folder"
            )


def bind(folder: Path, manager: FileProgramStateManager) -> None:
    """Gives a folder that has been checked the id of a program. Only the process that owns both calls this.

    Raises:
      ProgramStateError: If the id cannot be written, or another run uses the program's states.
    """
    if read_id(folder / _OWNER) is None:
        write_id(folder / _OWNER, manager.program_id.drawn())
