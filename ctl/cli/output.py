"""Output: the only place that prints. stdout carries the answer, stderr everything else.

All text for a terminal is sanitized here, so callers need not remember to. Callers pass lines as parts: plain
text, or text with a style from `paint`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from ctl.cli.errors import CtlError, DaemonError
from ctl.cli.json_text import escape, indent
from ctl.cli.text import clean, clean_block, cut, width

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from typing import TextIO

Line = Sequence[str]
"""The parts of one line."""

_STYLES = {"green": "32", "red": "31", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}


class StyledText(str):
    """Text with a style, which is used if the output has colors."""

    __slots__ = ("style",)
    style: str


def paint(text: str, style: str) -> StyledText:
    """Return `text` in the style green, red, yellow, cyan, dim or bold."""
    painted = StyledText(text)
    painted.style = style
    return painted


class Output:
    """stdout and stderr of one run. `json`: the answer is one JSON document."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.json = environ.get("MCPCTL_OUTPUT") == "json"
        self.socket = ""
        """The value of `--socket`, which next steps repeat; empty for the default socket."""
        self.host = ""
        """The value of `--host`, in the same way; empty for this machine."""
        self.url = self.token_file = ""
        """The values of `--url` and `--token-file`, in the same way."""
        self.tty = sys.stdout.isatty()
        self._progress_shown = False

    def line(self, *parts: str) -> None:
        """Print one line of the answer."""
        _write(sys.stdout, _styled(parts, _is_colored(sys.stdout, self._environ)))

    def lines(self, lines: Iterable[Line]) -> None:
        for parts in lines:
            self.line(*parts)

    def block(self, text: str) -> None:
        """Print text and keep its lines. In a pipe it is data and passes unchanged."""
        _write(sys.stdout, clean_block(text) if self.tty else text)

    def data(self, data: bytes) -> None:
        """Write bytes, for a file or a pipe."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def json_document(self, text: str) -> None:
        """Print JSON text: byte for byte in a pipe, indented and escaped on a terminal."""
        if self.tty:
            text = escape(indent(text))
        self.data(text.encode("utf-8", "surrogateescape") + b"\n")

    def json_value(self, value: object) -> None:
        """Print a value as one JSON document."""
        import json

        self.json_document(json.dumps(value, separators=(",", ":")))

    def answer(self, value: object, text: str) -> None:
        """Print `value` with --json, otherwise `text` as one line."""
        if self.json:
            self.json_value(value)
        else:
            self.line(text)

    def stream_item(self, value: object, *parts: str) -> None:
        """Print one element of a stream and flush: `value` as one line with --json, otherwise `parts`."""
        if self.json:
            self.json_line(value)
        else:
            self.line(*parts)
            self.flush()

    def json_line(self, value: object) -> None:
        """Print one element of a stream as one line of JSON, and flush."""
        import json

        _write(sys.stdout, json.dumps(value, separators=(",", ":")))
        sys.stdout.flush()

    def flush(self) -> None:
        sys.stdout.flush()

    def message(self, *parts: str) -> None:
        """Print one line on stderr, for a person."""
        self.end_progress()
        sys.stdout.flush()
        _write(sys.stderr, _styled(parts, _is_colored(sys.stderr, self._environ)))

    def warning(self, text: str) -> None:
        self.message(paint("warning: ", "yellow"), text)

    def next_step(self, text: str) -> None:
        """Print the command to type next."""
        self.message(paint("next: ", "dim"), self._for_socket(text))

    def _for_socket(self, step: str) -> str:
        """Return a next step whose commands use the same daemon as this one."""
        if not self.socket and not self.host and not self.url:
            return step
        import re
        import shlex

        from ctl.commands import LOCAL

        def command(found: re.Match[str]) -> str:
            is_local = found[1] in LOCAL or found[0].removeprefix("mcpctl ") in LOCAL
            if is_local and self.host:
                return f"ssh -t {self.host} {found[0]}"
            if is_local and self.url:
                return f"{found[0]} (on the machine of mcpd)"
            host = f"--host {self.host} " if self.host else ""
            if self.url:
                host = f"--url {self.url} "
                host += f"--token-file {shlex.quote(self.token_file)} " if self.token_file else ""
            socket = f"--socket {shlex.quote(self.socket)} " if self.socket else ""
            return found[0].replace("mcpctl ", f"mcpctl {host}{socket}", 1)

        return re.sub(r"\bmcpctl ([a-z-]+)( [a-z]+)?", command, step)

    def message_block(self, text: str) -> None:
        self.end_progress()
        sys.stdout.flush()
        _write(sys.stderr, clean_block(text) if sys.stderr.isatty() else text)

    @property
    def shows_progress(self) -> bool:
        """Whether there is a progress line: stderr is a terminal, and the answer is not JSON."""
        return sys.stderr.isatty() and not self.json

    def progress(self, text: str) -> None:
        """Redraw the progress line. Does nothing unless `shows_progress`."""
        if self.shows_progress:
            sys.stderr.write("\r\x1b[K" + cut(clean(text), columns(sys.stderr, self._environ) - 1))
            sys.stderr.flush()
            self._progress_shown = True

    def end_progress(self) -> None:
        """Clear the progress line, if there is one."""
        if self._progress_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._progress_shown = False

    def end_prompt_line(self) -> None:
        """End the line of a prompt that was interrupted."""
        if sys.stderr.isatty():
            self.message("")

    def error(self, error: CtlError) -> None:
        """Print an error and its hint on stderr, with --json as one JSON object."""
        self.end_progress()
        sys.stdout.flush()
        if self.json:
            import json

            error.hint = self._for_socket(error.hint)
            _write(sys.stderr, json.dumps({"error": error.to_json()}))
            return
        self.message(paint("error: ", "red"), _headline(error))
        for problem in error.problems:
            fix = f" ({problem['fix']})" if problem.get("fix") else ""
            path = "" if problem.get("path", "$") == "$" else f"{problem['path']}: "
            self.message(f"  {path}{problem.get('message', '')}{fix}")
        if error.details.get("may_have_run") is True and "may have run" not in error.message:
            self.message(paint("note: ", "yellow"), "it may have run: check its effect before you repeat it")
        if error.hint:
            self.next_step(error.hint)

    @property
    def columns(self) -> int | None:
        """Columns of the terminal; None in a pipe, where nothing is truncated."""
        return columns(sys.stdout, self._environ) if self.tty else None

    @property
    def rows(self) -> int:
        """Rows of the terminal."""
        try:
            return os.get_terminal_size(sys.stdout.fileno()).lines or 24
        except (OSError, ValueError):
            return 24

    def styled(self, parts: Line) -> str:
        """Return one line as it would be printed, for a live display."""
        return _styled(parts, _is_colored(sys.stdout, self._environ))


def _is_colored(stream: TextIO, environ: Mapping[str, str]) -> bool:
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and environ.get("TERM") != "dumb"


def _styled(parts: Line, colored: bool) -> str:
    shown = []
    for part in parts:
        text = _clean_inner(part)
        if colored and isinstance(part, StyledText):
            text = f"\x1b[{_STYLES[part.style]}m{text}\x1b[0m"
        shown.append(text)
    return "".join(shown) if colored else "".join(shown).rstrip()


def _write(stream: TextIO, text: str) -> None:
    stream.write(text if text.endswith("\n") else text + "\n")


def columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    """Return `$COLUMNS`, else the columns of the terminal `stream`, else 80."""
    try:
        return int(environ["COLUMNS"])
    except (KeyError, ValueError):
        pass  # not set, or not a number: ask the terminal
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _headline(error: CtlError) -> str:
    """Return the message without the list of problems at its end, which are printed one per line."""
    if not isinstance(error, DaemonError) or not error.problems:
        return error.message
    first = str(error.problems[0].get("message", ""))
    before, found, _ = error.message.partition(first)
    if not first or not found:
        return error.message
    before = before.rstrip(" :")
    suffix = " is invalid" if error.code == "bad_spec" else ""  # `before` names the file
    return f"{before}{suffix}" if before else "the configuration is invalid"


def _clean_inner(part: str) -> str:
    """Apply `clean` but keep spaces at either end, because parts are concatenated."""
    if part.isprintable():
        return part
    inner = part.strip(" ")
    left = part[: len(part) - len(part.lstrip(" "))]
    return f"{left}{clean(inner)}{part[len(left) + len(inner) :]}"


_MIN_WIDTH = 12
"""Characters that a truncated column keeps."""
_LAST_WIDTH = 24
"""Characters that the last column keeps at the expense of others, if it has as many."""


def table(
    header: Sequence[str],
    rows: Sequence[Line],
    *,
    right: Sequence[int] = (),
    fit: int | None = None,
    squeeze: Sequence[int] = (),
    drop: Sequence[int] = (),
) -> list[Line]:
    """Lay out columns as wide as their widest cell, two spaces apart. `right` lists the right-aligned ones.

    With `fit`, columns in `drop` are omitted, those in `squeeze` truncated, and then the last, in that order,
    until no line is longer. Without it, as in a pipe, nothing is.
    """
    cells: list[Line] = [[_styled_like(cell, clean(cell)) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in (header, *cells)) for i in range(len(header))]
    *others, last = range(len(header))
    if fit is not None:
        wanted = min(widths[last], _LAST_WIDTH)
        for i in drop:
            if _total(widths, others) + wanted > fit:
                others.remove(i)
        for i in squeeze:
            excess = _total(widths, others) + wanted - fit
            widths[i] = min(widths[i], max(_MIN_WIDTH, widths[i] - excess))
        widths[last] = min(widths[last], max(len(header[last]), fit - _total(widths, others)))
    kept = [*others, last]
    lines: list[Line] = [[paint(name, "bold") for name in header], *cells]
    return [_laid_out(row, widths, kept, right) for row in lines]


def _total(widths: Sequence[int], columns: Sequence[int]) -> int:
    return sum(widths[i] + 2 for i in columns)


def _laid_out(row: Line, widths: Sequence[int], kept: Sequence[int], right: Sequence[int]) -> Line:
    """Return the parts of a row: cells of their columns' widths, two spaces apart."""
    parts: list[str] = []
    for i in kept:
        cell = _styled_like(row[i], cut(row[i], widths[i]))
        pad = " " * (widths[i] - width(cell))
        parts += [pad, cell] if i in right else [cell] if i == kept[-1] else [cell, pad]
        parts += [] if i == kept[-1] else ["  "]
    return [part for part in parts if part]


def _styled_like(model: str, text: str) -> str:
    return paint(text, model.style) if isinstance(model, StyledText) else text


def labelled_lines(rows: Sequence[tuple[str, str | Sequence[str]]]) -> list[Line]:
    """Lay out one row per line, with the labels right-aligned before a colon, as systemctl shows a unit."""
    return [
        [paint(f"{label:>12}: ", "dim"), *([value] if isinstance(value, str) else value)]
        for label, value in rows
    ]
