"""Which URIs a template may expand to, without the backtracking that would let a server hold up everybody.

The template is a server's and the URI a client's: as a regular expression, twenty slots and a URI of forty
letters take longer than anybody waits. Here the places that a match may have reached are carried along, so
that the work is bounded by slots times length.
"""

from __future__ import annotations

import re

import attrs

_SLOT = re.compile(r"\{[^{}]*\}")
_MAX_LENGTH = 2000
"""Characters of a template, and of a URI that is compared with one."""
_MAX_SLOTS = 20
"""Slots; what comes after them may be anything."""
_Spans = list[tuple[int, int]]
"""Where the next literal may begin: disjoint, in order, both ends included."""


@attrs.frozen
class UriTemplate:
    """`{x}` is within one segment, `{+x}`, `{/x}` and the like are anything; both may be empty."""

    start: str
    parts: tuple[tuple[bool, str], ...]
    """Of each slot: whether it may be anything, and the text behind it."""

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
    """As a server lists it (`uriTemplate`)."""
    text = text[:_MAX_LENGTH]
    slots, literals = _SLOT.findall(text), _SLOT.split(text)
    parts = [
        (slot[1:2] in tuple("+#/.;?&"), literal) for slot, literal in zip(slots, literals[1:], strict=True)
    ]
    if len(parts) > _MAX_SLOTS:
        parts = [*parts[: _MAX_SLOTS - 1], (True, "")]
    return UriTemplate(literals[0], tuple(parts))


def _within_segments(uri: str, spans: _Spans) -> _Spans:
    """Each of them on to the end of its segment."""
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
    """Behind each place where the literal stands and may."""
    found: _Spans = []
    for start, end in spans:
        at = uri.find(literal, start, end + len(literal))
        while at >= 0:
            found.append((at + len(literal), at + len(literal)))
            at = uri.find(literal, at + 1, end + len(literal))
    return found
