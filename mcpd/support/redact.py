"""Secrets masked by value: whatever a text says, these strings never leave us in a log or a status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, quote_plus

MASK = "***"
_MIN_LENGTH = 6
"""Shorter values would mask ordinary words."""
_MIN_LINE_LENGTH = 16
"""Of a line of a secret that has several: logs are read line by line."""
_MAX_SETS_PER_SERVER = 100
"""Of what a server was started with, so many different sets: dozens of starts."""


_URL_ENCODINGS: tuple[Callable[[str], str], ...] = (
    lambda text: quote(text, errors="replace"),
    lambda text: quote(text, safe="", errors="replace"),
    lambda text: quote_plus(text, errors="replace"),
)


class Redactor:
    """Knows the secret values in force. One for the daemon; grows with what is read and fetched."""

    def __init__(self) -> None:
        self._always: frozenset[str] = frozenset()
        self._recent: dict[str, list[frozenset[str]]] = {}
        """By the server that was started with them, those of its last starts at the end."""
        self._known: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def add(self, secrets: Iterable[str], of: str = "") -> None:
        """Mask these from now on; those of a server that is being started only until it has been started with
        enough others. A command may give another token each time, for months, and each of them would
        make every line of every log a little slower."""
        values = frozenset(_spellings(secrets))
        if of and values:
            lately = self._recent.setdefault(of, [])
            if values in lately:
                lately.remove(values)
            lately.append(values)
            del lately[:-_MAX_SETS_PER_SERVER]
        else:
            self._always |= values
        known = self._always.union(*(each for lately in self._recent.values() for each in lately))
        if known != self._known:
            self._known = known
            longest_first = sorted(known, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def mask_within(self, value: object) -> object:
        """Plain data with every text in it masked; keys stay."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {key: self.mask_within(inner) for key, inner in value.items()}
        return [self.mask_within(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    def mask(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)


def _spellings(secrets: Iterable[str]) -> set[str]:
    """Those that are long enough, each in every way in which it may be written."""
    long_enough = {secret for secret in secrets if len(secret) >= _MIN_LENGTH}
    for secret in tuple(long_enough):
        if "\n" in secret:
            lines = (line.strip() for line in secret.splitlines())
            long_enough.update(line for line in lines if len(line) >= _MIN_LINE_LENGTH)
    # In a JSON text a quote, a backslash or an umlaut may be spelt otherwise; so in a URL.
    escaped = {json.dumps(s, ensure_ascii=plain)[1:-1] for s in long_enough for plain in (True, False)}
    escaped |= {spell(s) for s in long_enough for spell in _URL_ENCODINGS}
    return long_enough | escaped
