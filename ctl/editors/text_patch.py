"""What we changed in a text, line by line, and taking it back in one that has been changed since.

A taken-out entry comes back with its comments, in its old place, where that can still be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import attrs

_CONTEXT = 3
"""Lines on each side that tell a place from others."""


@attrs.frozen
class DiffHunk:
    """One place: `ours` stands there now, `theirs` did before. Lines with their ends."""

    above: tuple[str, ...] = attrs.field(repr=False)
    ours: tuple[str, ...] = attrs.field(repr=False)
    theirs: tuple[str, ...] = attrs.field(repr=False)
    below: tuple[str, ...] = attrs.field(repr=False)


def diff_hunks(before: str, after: str) -> tuple[DiffHunk, ...]:
    """What made `after` of `before`."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    # Files of 40,000 lines with one change: only what is between its first and last line is compared.
    least = min(len(old), len(new))
    head = next((n for n in range(least) if old[n] != new[n]), least)
    least -= head
    tail = next((n for n in range(least) if old[-1 - n] != new[-1 - n]), least)
    matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail])
    return tuple(
        DiffHunk(
            above=tuple(new[max(0, head + start - _CONTEXT) : head + start]),
            ours=tuple(new[head + start : head + end]),
            theirs=tuple(old[head + old_start : head + old_end]),
            below=tuple(new[head + end : head + end + _CONTEXT]),
        )
        for tag, old_start, old_end, start, end in matcher.get_opcodes()
        if tag != "equal"
    )


def revert_hunks(text: str, changes: Sequence[DiffHunk]) -> tuple[str, int]:
    """`text` with those of `changes` taken back whose place is found in it once, and how many are not."""
    lines, lost = text.splitlines(keepends=True), 0
    for hunk in changes:
        at = _find_hunk(lines, hunk)
        if at is None:
            lost += 1
        else:
            lines[at : at + len(hunk.ours)] = hunk.theirs
    return "".join(lines), lost


def _find_hunk(lines: list[str], hunk: DiffHunk) -> int | None:
    for above, below in _contexts(hunk):
        wanted = [*above, *hunk.ours, *below]
        if not any(line.strip() for line in wanted):
            continue
        found = [at for at in _indexes(lines, wanted[0]) if lines[at : at + len(wanted)] == wanted]
        if len(found) == 1:
            return found[0] + len(above)
    return None


def _contexts(hunk: DiffHunk) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """From much to little: whoever edited the file may have done it next to us."""
    for lines in range(_CONTEXT, 0, -1):
        yield hunk.above[-lines:], hunk.below[:lines]
    for lines in range(_CONTEXT, 0, -1):
        yield hunk.above[-lines:], ()
        yield (), hunk.below[:lines]
    yield (), ()


def _indexes(lines: list[str], wanted: str) -> Iterator[int]:
    at = -1
    while True:
        try:
            at = lines.index(wanted, at + 1)
        except ValueError:
            return
        yield at
