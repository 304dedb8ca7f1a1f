"""Run the commands of the demo and show their output as on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import attrs

LIMIT = 40.0
"""Timeout for one command, in seconds."""
PIPED_COLUMNS = 110
_REDRAWN = "\r\x1b[K"
"""The characters that mcpctl writes before it redraws its progress line."""


@attrs.frozen
class Shown:
    """The exit code and the complete output of a command."""

    code: int
    text: str


@attrs.frozen
class Terminal:
    """Runs commands in a pseudo-terminal, so that they print the output that a user sees.

    On a terminal, the output appears immediately and in color. In a pipe, it has no color, and each update
    of a progress line is printed on its own line.
    """

    environ: Mapping[str, str]
    directory: Path
    tty: bool = attrs.field(factory=lambda: sys.stdout.isatty() and os.environ.get("TERM") != "dumb")

    def heading(self, number: int, text: str) -> None:
        self._print(f"\n{self._style('1', f'{number}. {text}')}")

    def say(self, text: str) -> None:
        self._print(text)

    def good(self, text: str) -> None:
        """Print a claim that has been checked."""
        self._print(f"{self._style('32', '✓')} {text}")

    def bad(self, text: str) -> None:
        self._print(f"{self._style('31', '✗')} {text}")

    def command(self, line: str) -> None:
        """Print a command line for an action that the demo performs itself."""
        self._print(self._style("1;36", "$ ") + line)

    def run(self, *words: str, shown: str = "") -> Shown:
        """Run a command and show its output. `shown` replaces the command line that is displayed."""
        self.command(shown or " ".join(_quoted(word) for word in words))
        columns = shutil.get_terminal_size().columns if self.tty else PIPED_COLUMNS
        plain = {} if self.tty else {"NO_COLOR": "1"}
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "rb", buffering=0) as screen:
            _prepare(theirs, columns)
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                cwd=self.directory,
                env={**self.environ, **plain, "COLUMNS": str(columns)},
            )
            os.close(theirs)
            text = self._read(screen.fileno())
        code = process.wait(LIMIT)
        if not self.tty:
            frames = [frame.rstrip("\n") for frame in text.split(_REDRAWN)]
            new = [frame for before, frame in pairwise(["", *frames]) if frame not in ("", before)]
            self._print("\n".join(new))
        if code:
            self._print(self._style("2", f"(exit code {code})"))
        return Shown(code, text)

    def ask(self, *words: str) -> Shown:
        """Run a command without showing it. Return its stdout, or its stderr if stdout is empty."""
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=dict(self.environ),
            timeout=LIMIT,
        )
        return Shown(done.returncode, done.stdout if done.stdout else done.stderr)

    def _read(self, screen: int) -> str:
        """Return all output until the command and its children have closed the terminal."""
        seen = b""
        while True:
            try:
                portion = os.read(screen, 4096)
            except OSError:  # Linux raises EIO when no process has the terminal open anymore
                portion = b""
            if not portion:
                return seen.decode("utf-8", "replace")
            seen += portion
            if self.tty:
                sys.stdout.buffer.write(portion)
                sys.stdout.buffer.flush()

    def _style(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.tty and not os.environ.get("NO_COLOR") else text

    @staticmethod
    def _print(text: str) -> None:
        if text:
            print(text, flush=True)


def _prepare(terminal: int, columns: int) -> None:
    """Set the size of the terminal and disable the translation of line endings."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    modes = termios.tcgetattr(terminal)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, modes)


def _quoted(word: str) -> str:
    """Quote a word if a shell requires it. `shlex` would also quote `a:=1` and `echo@test`."""
    harmless = "@%+=:,./-_[]{}"
    return word if word and all(c.isalnum() or c in harmless for c in word) else f"'{word}'"


def lines(words: Sequence[str]) -> str:
    """Return the words as a list in English: `a, b and c`."""
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]
