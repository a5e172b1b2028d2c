"""Ctrl-C stops a solver after the current steps, so that no result is lost."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """A context in which the first Ctrl-C sets `wished`; a second one raises ``KeyboardInterrupt`` as usual.

    Signals reach the main thread only. In other threads, or if another handler is installed, nothing changes.
    """

    def __init__(self) -> None:
        self.wished = False
        self._before: Any = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wished:
            signal.default_int_handler(number, frame)
        self.wished = True

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
