"""Secrets masked by value: whatever a text says, these strings never leave us in a log or a status."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, quote_plus

MASK = "***"
_SHORTEST = 6
"""Shorter values would mask ordinary words."""
_SHORTEST_LINE = 16
"""Of a line of a secret that has several: logs are read line by line."""


_IN_URLS: tuple[Callable[[str], str], ...] = (
    lambda text: quote(text, errors="replace"),
    lambda text: quote(text, safe="", errors="replace"),
    lambda text: quote_plus(text, errors="replace"),
)


class Redactor:
    """Knows the secret values in force. One for the daemon; grows with what is read and fetched."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, secrets: Iterable[str]) -> None:
        long_enough = {secret for secret in secrets if len(secret) >= _SHORTEST}
        for secret in tuple(long_enough):
            if "\n" in secret:
                lines = (line.strip() for line in secret.splitlines())
                long_enough.update(line for line in lines if len(line) >= _SHORTEST_LINE)
        # In a JSON text a quote, a backslash or an umlaut may be spelt otherwise; so in a URL.
        escaped = {json.dumps(s, ensure_ascii=plain)[1:-1] for s in long_enough for plain in (True, False)}
        escaped |= {spell(s) for s in long_enough for spell in _IN_URLS}
        new = (long_enough | escaped) - self._known
        if new:
            self._known |= new
            longest_first = sorted(self._known, key=len, reverse=True)
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
