"""A failure in one phrase: how it ended, and the one line of stderr that says why."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcpd.model.text import shorten

MAX_LENGTH = 200
"""Characters of a summary."""
NOT_MCP = "it does not speak MCP"
"""The beginning of a failure's message if a process writes something else to stdout, and nothing in MCP."""

_NOISE = re.compile(
    r"at \S+|Node\.js v\d|Traceback \(|File \"|[\W_]*$|npm (?:notice|warn)\b"
    r"|npm (?:error|ERR!)(?: (?:A complete log|code |errno|syscall|path |dest )|\s*$)"
    r"|(?:\w+ )?\[?(?:INFO|DEBUG)\b"
    r"|[^\w/]*/\S*$"
    r"|(?!err|message|reason)(?-i:[a-z])\w*: (?:undefined|null|true|false|-?\d+n?|'.*'|\".*\"|\[.*|\{.*),?$",
    re.IGNORECASE,
)
"""Lines that explain nothing: frames of a trace, versions, punctuation, progress, paths, and the properties
that node shows after the trace of an error."""
_CAUSE = re.compile(
    r"error|exception|required|missing|must|not |cannot|can't|unable|fail|invalid|denied|refused|in use"
    r"|no such|unknown|unset|undefined|fatal|panic",
    re.IGNORECASE,
)
_NPM = re.compile(r"npm (?:error|ERR!)\s*", re.IGNORECASE)
_TIMESTAMP = re.compile(r"[\[(]?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?[\])]?[\s:|-]*")


def informative_line(stderr: Sequence[str], *, only_causes: bool = False) -> str:
    """Return the line of stderr that most likely names the cause, without a timestamp; empty if none does.

    npm reports the cause first, all others report it last. If no line looks like a cause, it is the last one,
    unless `only_causes`.
    """
    place = _informative_place(stderr, only_causes=only_causes)
    return "" if place is None else _NPM.sub("", _TIMESTAMP.sub("", stderr[place].strip(), count=1))


def _informative_place(stderr: Sequence[str], *, only_causes: bool = False) -> int | None:
    stripped = [_TIMESTAMP.sub("", line.strip(), count=1) for line in stderr]
    lines = {place: line for place, line in enumerate(stripped) if line and not _NOISE.match(line)}
    causes = [place for place, line in lines.items() if _CAUSE.search(line)]
    if npm := [place for place in causes if _NPM.match(lines[place])]:
        return npm[0]
    found = causes or ([] if only_causes else list(lines))
    return found[-1] if found else None


def lines_with_cause(stderr: Sequence[str], count: int) -> tuple[str, ...]:
    """Return `count` successive lines of stderr: the last ones, unless the line that names the cause is
    before them. Then they begin with it, because a long trace may follow it.
    """
    place = _informative_place(stderr, only_causes=True)
    start = max(0, len(stderr) - count)
    return tuple(stderr[start if place is None else min(place, start) :][:count])


def summarize(
    message: str, exit_code: int | None, signal: str | None, stderr: Sequence[str], *, process_ended: bool
) -> str:
    """Return for example `exited (1): MY_API_KEY is required`, in at most MAX_LENGTH characters.

    `process_ended`: the process exited or was killed, so that its status replaces the first clause of
    `message`. While it runs, or if a signal ended it, stderr may just be a log, so that only a line that
    looks like a cause counts.
    """
    how = message.partition("\n")[0].partition("; ")[0]
    line = informative_line(stderr, only_causes=not process_ended or exit_code is None)
    if process_ended and line:
        how = f"killed ({signal})" if signal else f"exited ({exit_code})" if exit_code is not None else how
    return shorten(f"{how}: {line}" if line and line not in how else how, MAX_LENGTH)
