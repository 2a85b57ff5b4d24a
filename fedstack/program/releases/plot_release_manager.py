"""Releases numbers as curves in a picture."""

import base64
import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

from fedstack.errors import InvalidValueError
from fedstack.program.argument_checks import checked_path
from fedstack.program.releases.staged_release_manager import Row, StagedReleaseManager, numbers_of
from fedstack.program.releases.table_release_manager import TableReleaseManager
from fedstack.program.states.file_program_state_manager import FileProgramStateManager

_Path: TypeAlias = "str | os.PathLike[str]"
_ROWS = re.compile(rb"fedstack-rows:([A-Za-z0-9+/]+=*);")


class PlotReleaseManager(TableReleaseManager):
    """Draws the curves of released numbers to a picture, with a panel for each number of the values.

    Strings, and arrays that have dimensions, are left out: reduce an array to a number before it is released. A curve
    is broken where a value is NaN or infinite, and has a red cross at the bottom there.

    The picture is a table, as a CSV file is: its metadata contain the rows that it shows. So it needs no other file to
    be drawn again after a resume, a key that is released again replaces its point, and the file is complete at any
    moment. The same rows give the same bytes, with the same versions of matplotlib and zlib. No display is needed. Each
    release draws the picture again on a thread, in tenths of a second for a few panels and in seconds for dozens.

    Args:
      file_path: The path of the file, which ends in .svg, .pdf or .png; or several paths, to write the same picture to
        each. Rows are read from the first.
      state_manager: See `TableReleaseManager`.
      key_fieldname: What the keys are, which the axes say. Keys are whole numbers.
      title: A title of the picture.

    Raises:
      InvalidValueError: If a path ends otherwise.
      ImportError: If matplotlib is not installed.
    """

    def __init__(
        self,
        file_path: "_Path | Sequence[_Path]",
        *,
        state_manager: FileProgramStateManager | None = None,
        key_fieldname: str = "round",
        title: str | None = None,
    ) -> None:
        from fedstack.observe.figures import SUFFIXES

        several = isinstance(cast(object, file_path), Iterable) and not isinstance(file_path, str)
        given = list(cast("Sequence[_Path]", file_path)) if several else [cast(_Path, file_path)]
        paths = [checked_path("file_path", path, "the path of a file") for path in given or [""]]
        for path in paths:
            if path.suffix.lower() not in SUFFIXES:
                raise InvalidValueError(
                    f"Expected a path that ends in {', '.join(SUFFIXES)} as file_path, found {os.fspath(path)!r}; "
                    "choose one of these kinds"
                )
        self._copies = paths[1:]
        self._title = title
        super().__init__(paths[0], state_manager=state_manager, key_fieldname=key_fieldname)

    _key_of = StagedReleaseManager._key_of

    def _row_of(self, named: Sequence[tuple[str, object]]) -> Row:
        return dict(numbers_of(super()._row_of(named)))

    def _read(self, content: bytes) -> list[Row]:
        found = _ROWS.search(content)
        if found is None:
            raise ValueError("a picture without rows")
        try:
            return cast("list[Any]", json.loads(zlib.decompress(base64.b64decode(found[1]))))
        except zlib.error as error:
            raise ValueError(str(error)) from error

    def _write(self, rows: list[Row]) -> None:
        for path in (*self._copies, self._path):  # the first path last: it is the one whose rows are known
            self._replace(path, self._drawn(rows, path.suffix.lower()))

    def _written(self, rows: list[Row]) -> bytes:
        return self._drawn(rows, self._path.suffix.lower())

    def _drawn(self, rows: list[Row], suffix: str) -> bytes:
        from fedstack.observe.figures import draw_panels, picture_of

        note = base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()
        curves: dict[str, list[tuple[int, float]]] = {}
        for row in sorted(rows, key=lambda row: cast(int, row[self._key])):
            for name, value in row.items():
                if name != self._key:
                    curves.setdefault(name, []).append((cast(int, row[self._key]), cast(float, value)))
        figure = draw_panels(curves, self._key, self._title)
        return picture_of(figure, suffix, f"fedstack-rows:{note};")
