"""Lets a system without room for threads be played."""

import threading

import pytest


class ThreadStarts:
    """Says how many threads of fedstack's the system still starts; those of tests come from elsewhere.

    Attributes:
      left: How many.
      failure: What Python raises when there are none.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.failure: BaseException = RuntimeError("can't start new thread")
        start = threading.Thread.start

        def start_if_there_is_room(thread: threading.Thread) -> None:
            if thread.name.startswith("fedstack"):
                if not self.left:
                    raise type(self.failure)(*self.failure.args)  # one of its own: an error keeps frames
                self.left -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_if_there_is_room)
