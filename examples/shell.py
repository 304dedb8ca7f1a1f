"""A terminal for the demo: runs real commands and shows what a person would have seen."""

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
from pathlib import Path

import attrs

LIMIT = 40.0
"""Seconds that one command may take."""
PIPED_COLUMNS = 110
_REDRAWN = "\r\x1b[K"
"""What mcpctl writes before each state of its line of progress."""


@attrs.frozen
class Shown:
    """One command that was run: its exit code, and all it printed."""

    code: int
    text: str


@attrs.frozen
class Terminal:
    """Runs commands in a pseudo-terminal, so that they print what they print for people.

    On a terminal their output passes through as it comes, in colour. Piped, it is plain, and each state
    of a line of progress gets a line of its own.
    """

    environ: Mapping[str, str]
    directory: Path
    tty: bool = attrs.field(factory=lambda: sys.stdout.isatty() and os.environ.get("TERM") != "dumb")

    def heading(self, number: int, text: str) -> None:
        self._print(f"\n{self._style('1', f'{number}. {text}')}")

    def say(self, text: str) -> None:
        self._print(text)

    def good(self, text: str) -> None:
        """Something that was promised, looked at and found true."""
        self._print(f"{self._style('32', '✓')} {text}")

    def bad(self, text: str) -> None:
        self._print(f"{self._style('31', '✗')} {text}")

    def command(self, line: str) -> None:
        """A command line as typed, for what is done without running a program."""
        self._print(self._style("1;36", "$ ") + line)

    def run(self, *words: str, shown: str = "") -> Shown:
        """Run a command where its output can be seen; `shown` is how a person would have typed it."""
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
            frames = [frame for frame in text.split(_REDRAWN) if frame]
            self._print("\n".join(frame.rstrip("\n") for frame in frames))
        if code:
            self._print(self._style("2", f"(exit code {code})"))
        return Shown(code, text)

    def ask(self, *words: str) -> Shown:
        """Run a command unseen. Its stdout only."""
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
        """Everything, until the command and its children have closed the terminal."""
        seen = b""
        while True:
            try:
                portion = os.read(screen, 4096)
            except OSError:  # EIO is how Linux says that nobody has it open any more
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
    """Give it a size, and have it leave line ends alone."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    modes = termios.tcgetattr(terminal)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(terminal, termios.TCSANOW, modes)


def _quoted(word: str) -> str:
    """Quoted only where a shell needs it: `shlex` would quote `a:=1` and `echo@test` as well."""
    harmless = "@%+=:,./-_[]{}"
    return word if word and all(c.isalnum() or c in harmless for c in word) else f"'{word}'"


def lines(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1]
