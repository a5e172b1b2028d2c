"""Progress on the standard error stream: one line that is rewritten, or plain lines."""

import shutil
import sys
import time
from typing import Self

_REWRITE = 0.1  # seconds between two versions of a line on a terminal
_REPEAT = 5.0  # seconds between two lines elsewhere


class Line:
    """A line of progress.

    On a terminal the line is rewritten several times a second; elsewhere a line is added every five seconds.

    Parameters
    ----------
    title : str
        What is being done.
    shown : bool, default=True
        Whether to write at all.
    """

    def __init__(self, title: str, *, shown: bool = True) -> None:
        self._title, self._shown = title, shown
        self._terminal = shown and sys.stderr.isatty()
        self._started = self._said = time.monotonic()
        self._text = ""

    def say(self, text: str) -> None:
        """Show a text, unless the last one was shown a moment ago."""
        if not self._shown:
            return
        self._text = text
        now = time.monotonic()
        if now - self._said >= (_REWRITE if self._terminal else _REPEAT):
            self._said = now
            self._write()

    def _write(self) -> None:
        line = f"{self._title}: {self._text} [{time.monotonic() - self._started:.0f} s]"
        # A line that is too long for the terminal cannot be rewritten.
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[2K{line[:width]}" if self._terminal else f"{line}\n")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._text:
            self._write()
            if self._terminal:
                sys.stderr.write("\n")
