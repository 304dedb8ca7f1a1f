"""URI templates of resources (the simple forms of RFC 6570), matched at bounded cost."""

from __future__ import annotations

import re

import msgspec

_SLOT = r"\{[^{}]*\}"
_MAX_LENGTH = 2000
"""Characters of a template, or of a URI compared with one."""
_MAX_SLOTS = 20
"""Slots; anything matches after the last one."""
_Spans = list[tuple[int, int]]
"""Where the next literal may start: disjoint, ordered, both ends included."""


class UriTemplate(msgspec.Struct, frozen=True):
    """A parsed URI template, matched without backtracking: a template comes from a server and a URI from a
    client, so a regular expression with twenty slots could run for years. The work here is bounded by slots
    times length.

    `{x}` matches within one path segment; `{+x}`, `{/x}` and similar match anything. Both may be empty.
    """

    start: str
    parts: tuple[tuple[bool, str], ...]
    """For each slot: whether it matches anything, and the literal text after it."""

    def matches(self, uri: str) -> bool:
        if len(uri) > _MAX_LENGTH or not uri.startswith(self.start):
            return False
        if not self.parts:
            return uri == self.start
        spans: _Spans = [(len(self.start), len(self.start))]
        for number, (free, literal) in enumerate(self.parts):
            spans = [(spans[0][0], len(uri))] if free else _within_segments(uri, spans)
            if number == len(self.parts) - 1:
                end = len(uri) - len(literal)
                return uri.endswith(literal) and any(a <= end <= b for a, b in spans)
            if literal:
                spans = _after_literal(uri, spans, literal)
                if not spans:
                    return False
        raise AssertionError("the last part decides")


def parse_template(text: str) -> UriTemplate:
    """Parse a `uriTemplate` as servers list it."""
    text = text[:_MAX_LENGTH]
    slots, literals = re.findall(_SLOT, text), re.split(_SLOT, text)
    parts = [
        (slot[1:2] in tuple("+#/.;?&"), literal) for slot, literal in zip(slots, literals[1:], strict=True)
    ]
    if len(parts) > _MAX_SLOTS:
        parts = [*parts[: _MAX_SLOTS - 1], (True, "")]
    return UriTemplate(literals[0], tuple(parts))


def _within_segments(uri: str, spans: _Spans) -> _Spans:
    """Extend each span to the end of its path segment."""
    reached: _Spans = []
    for start, end in spans:
        slash = uri.find("/", end)
        stop = len(uri) if slash < 0 else slash
        if reached and start <= reached[-1][1]:
            reached[-1] = (reached[-1][0], max(stop, reached[-1][1]))
        else:
            reached.append((start, stop))
    return reached


def _after_literal(uri: str, spans: _Spans, literal: str) -> _Spans:
    """Return the positions after each possible occurrence of `literal`."""
    found: _Spans = []
    for start, end in spans:
        at = uri.find(literal, start, end + len(literal))
        while at >= 0:
            found.append((at + len(literal), at + len(literal)))
            at = uri.find(literal, at + 1, end + len(literal))
    return found
