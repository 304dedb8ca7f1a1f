"""Masks secrets by value in logs and in everything that mcpd shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, quote_plus

MASK = "***"
_MIN_LENGTH = 6
"""Characters. Shorter values would mask ordinary words."""
_MIN_LINE_LENGTH = 16
"""Characters. Longer lines of a multi-line secret are masked separately, since logs are read by line."""
_MAX_SETS_PER_SERVER = 100
"""How many different sets of secrets are remembered for each server: enough for dozens of starts."""


_URL_ENCODINGS: tuple[Callable[[str], str], ...] = (
    lambda text: quote(text, errors="replace"),
    lambda text: quote(text, safe="", errors="replace"),
    lambda text: quote_plus(text, errors="replace"),
)


class Redactor:
    """Knows all secret values in use. The daemon has one instance."""

    def __init__(self) -> None:
        self._always: frozenset[str] = frozenset()
        self._recent: dict[str, list[frozenset[str]]] = {}
        """Server → the sets of secrets of its last starts, newest last."""
        self._known: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def add(self, secrets: Iterable[str], of: str = "") -> None:
        """Mask these values from now on.

        With `of` (a server), only the last sets of that server are kept: a command may return a new token
        for every start, and each additional value slows down all masking.
        """
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
        """Mask every string in plain data; keys stay."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {key: self.mask_within(inner) for key, inner in value.items()}
        return [self.mask_within(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    def mask(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)


def _spellings(secrets: Iterable[str]) -> set[str]:
    """Return the secrets that are long enough, in all their encodings."""
    long_enough = {secret for secret in secrets if len(secret) >= _MIN_LENGTH}
    for secret in tuple(long_enough):
        if "\n" in secret:
            lines = (line.strip() for line in secret.splitlines())
            long_enough.update(line for line in lines if len(line) >= _MIN_LINE_LENGTH)
    # JSON and URLs encode some characters differently.
    escaped = {json.dumps(s, ensure_ascii=plain)[1:-1] for s in long_enough for plain in (True, False)}
    escaped |= {spell(s) for s in long_enough for spell in _URL_ENCODINGS}
    return long_enough | escaped
