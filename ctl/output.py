"""Out: the only place that prints. stdout carries the answer, stderr the talk.

Nothing reaches a terminal that was not made harmless here, so callers need not remember to. Callers
hand over lines as parts: plain text, or text with a style made by `paint`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from ctl.errors import CtlError, DaemonError
from ctl.json_text import escape, indent
from ctl.terminal_text import clean, clean_block, cut

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from typing import TextIO

FORMATS = ("table", "json", "jsonl")
"""What `-o` takes."""

Line = Sequence[str]
"""Parts that make one line."""

_STYLES = {"green": "32", "red": "31", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


class Painted(str):
    """Text that has a style where there is colour."""

    __slots__ = ("style",)
    style: str


def paint(text: str, style: str) -> Painted:
    """`text` in green, red, yellow, cyan, dim or bold."""
    painted = Painted(text)
    painted.style = style
    return painted


class Output:
    """The two streams of one run, and how they are to be written."""

    def __init__(self, environ: Mapping[str, str], *, as_json: bool = False, color: str = "auto") -> None:
        self._environ = environ
        self.json = as_json
        self.format_is_default = True
        """This command was not asked for a form: it is the environment's, if that says anything."""
        self.compact = False
        """JSON stays on one line, on a terminal too."""
        self.color = color
        self.tty = sys.stdout.isatty()
        self._progress_shown = False

    def set_format(self, form: str) -> None:
        """One of `FORMS`; another word is no choice."""
        if form in FORMATS:
            self.json = form != "table"
            self.compact = form == "jsonl"

    # ---- answers -----------------------------------------------------------------------------

    def line(self, *parts: str) -> None:
        """One line of the answer."""
        self._write(sys.stdout, self._styled(parts, self._colored(sys.stdout)))

    def lines(self, lines: Iterable[Line]) -> None:
        for parts in lines:
            self.line(*parts)

    def block(self, text: str) -> None:
        """Text whose lines are kept. Piped, it goes through as it is: there it is data."""
        self._write(sys.stdout, clean_block(text) if self.tty else text)

    def data(self, data: bytes) -> None:
        """Bytes, for a file or a pipe."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def json_document(self, text: str) -> None:
        """One JSON document, given as text. Piped, not a byte of it is changed.

        On a terminal it is indented, and characters that could harm are escaped.
        """
        if self.tty:
            text = escape(text if self.compact else indent(text))
        self.data(text.encode("utf-8", "surrogateescape") + b"\n")

    def json_value(self, value: object) -> None:
        """One JSON document made of a value of ours."""
        self.json_document(json.dumps(value, separators=(",", ":")))

    def json_line(self, value: object) -> None:
        """One JSON object on a line of its own, at once: one element of a stream."""
        self._write(sys.stdout, json.dumps(value, separators=(",", ":")))
        sys.stdout.flush()

    def flush(self) -> None:
        sys.stdout.flush()

    # ---- talk --------------------------------------------------------------------------------

    def message(self, *parts: str) -> None:
        """One line for the person; never part of the answer."""
        self.end_progress()
        sys.stdout.flush()
        self._write(sys.stderr, self._styled(parts, self._colored(sys.stderr)))

    def message_block(self, text: str) -> None:
        self.end_progress()
        sys.stdout.flush()
        self._write(sys.stderr, clean_block(text) if sys.stderr.isatty() else text)

    def progress(self, text: str) -> None:
        """Redraw the one line of progress. Nothing when stderr is no terminal."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K" + cut(clean(text), columns(sys.stderr, self._environ) - 1))
            sys.stderr.flush()
            self._progress_shown = True

    def end_progress(self) -> None:
        """Take the line of progress away, if there is one."""
        if self._progress_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._progress_shown = False

    def end_prompt_line(self) -> None:
        """Leave the line of a question that nobody will answer any more."""
        if sys.stderr.isatty():
            self.message("")

    def error(self, error: CtlError) -> None:
        """What went wrong and what to do next: lines on stderr, or one JSON object there."""
        self.end_progress()
        sys.stdout.flush()
        if self.json:
            self._write(sys.stderr, json.dumps({"error": error.to_json()}))
            return
        self.message(paint("error: ", "red"), _headline(error))
        if isinstance(error, DaemonError):
            for problem in error.problems:
                fix = f" ({problem['fix']})" if problem.get("fix") else ""
                where = "" if problem.get("path", "$") == "$" else f"{problem['path']}: "
                self.message(f"  {where}{problem.get('message', '')}{fix}")
        if error.hint:
            self.message(paint("next: ", "dim"), error.hint)

    # ---- how ---------------------------------------------------------------------------------

    @property
    def columns(self) -> int | None:
        """Columns of the terminal; None when piped, where nothing is cut."""
        return columns(sys.stdout, self._environ) if self.tty else None

    @property
    def rows(self) -> int:
        """Rows of the terminal."""
        try:
            return os.get_terminal_size(sys.stdout.fileno()).lines or 24
        except (OSError, ValueError):
            return 24

    def styled(self, parts: Line) -> str:
        """One line as it would be printed, for a live display."""
        return self._styled(parts, self._colored(sys.stdout))

    def _colored(self, stream: TextIO) -> bool:
        if self.color != "auto":
            return self.color == "always"
        if self._environ.get("NO_COLOR"):
            return False
        if self._environ.get("FORCE_COLOR"):
            return True
        return stream.isatty() and self._environ.get("TERM") != "dumb"

    @staticmethod
    def _styled(parts: Line, colored: bool) -> str:
        shown = []
        for part in parts:
            text = _clean_inner(part)
            if colored and isinstance(part, Painted):
                text = f"\x1b[{_STYLES[part.style]}m{text}\x1b[0m"
            shown.append(text)
        return "".join(shown).rstrip() if not colored else "".join(shown)

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        stream.write(text if text.endswith("\n") else text + "\n")


def columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    """Columns of the terminal that `stream` is; `$COLUMNS` wins; 80 when nobody knows."""
    try:
        return int(environ["COLUMNS"])
    except (KeyError, ValueError):
        pass  # not set, or nonsense: ask the terminal
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _headline(error: CtlError) -> str:
    """Its message, without the list of problems at its end: they get a line each."""
    if not isinstance(error, DaemonError) or not error.problems:
        return error.message
    first = str(error.problems[0].get("message", ""))
    before, found, _ = error.message.partition(first)
    if not first or not found:
        return error.message
    before = before.rstrip(" :")
    cannot = " cannot be used" if error.code == "bad_spec" else ""  # before it stands which file
    return f"{before}{cannot}" if before else "this cannot be used"


def _clean_inner(part: str) -> str:
    """`clean`, but spaces at either end stay: parts are glued together."""
    if part.isprintable():
        return part
    inner = part.strip(" ")
    left = part[: len(part) - len(part.lstrip(" "))]
    return f"{left}{clean(inner)}{part[len(left) + len(inner) :]}"
