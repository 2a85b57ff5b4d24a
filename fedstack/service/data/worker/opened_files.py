"""Remembers how files were when a pass first opened them: a data worker reads its ranges one by one."""

import threading
from collections.abc import Callable

from fedstack.computations.types.bounded_cache import BoundedCache
from fedstack.errors import InvalidValueError

# Of so many files in passes it is remembered; those that were opened longest ago are forgotten.
_MOST_FILES = 1 << 16
_MOST_ID_BYTES = 64
_Stamp = tuple[int, ...]


class OpenedFiles:
    """The stamps of the files that passes have opened. Any thread may ask."""

    def __init__(self) -> None:
        self._stamps: BoundedCache[tuple[bytes, str], _Stamp] = BoundedCache(_MOST_FILES, _MOST_FILES)
        self._lock = threading.Lock()

    def first_stamp(self, pass_id: bytes) -> Callable[[str, _Stamp], _Stamp]:
        """Returns what says how files were for a pass at first; see `DatasetScope.first_stamp`.

        Args:
          pass_id: Stands for the pass; empty for one that has this range alone.

        Raises:
          InvalidValueError: If it is none.
        """
        if len(pass_id) > _MOST_ID_BYTES:
            raise InvalidValueError(
                f"Expected the id of a pass of at most {_MOST_ID_BYTES} bytes, found {len(pass_id)}"
            )
        if not pass_id:
            return dict[str, _Stamp]().setdefault

        def first_stamp(path: str, stamp: _Stamp) -> _Stamp:
            with self._lock:
                before = self._stamps.get((pass_id, path))
                if before is None:
                    self._stamps.put((pass_id, path), stamp, 1)
                return stamp if before is None else before

        return first_stamp

    def __repr__(self) -> str:
        return f"<OpenedFiles: {len(self._stamps)}>"
