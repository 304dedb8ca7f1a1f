"""Secrets masked by value: whatever a text says, these strings never leave us in a log or a status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

MASK = "***"
_SHORTEST = 6
"""Shorter values would mask ordinary words."""


class Redactor:
    """Knows the secret values in force. One for the daemon; grows with every configuration it reads."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, secrets: Iterable[str]) -> None:
        long_enough = {secret for secret in secrets if len(secret) >= _SHORTEST}
        # In a JSON text a quote, a backslash or an umlaut may be spelt otherwise.
        escaped = {json.dumps(s, ensure_ascii=plain)[1:-1] for s in long_enough for plain in (True, False)}
        new = (long_enough | escaped) - self._known
        if new:
            self._known |= new
            longest_first = sorted(self._known, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def mask(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)
