"""Masks secrets by value, in every usual spelling, in logs and in everything that mcpd shows."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from mcpd.support.escapes import Unescaped
from mcpd.support.spellings import spellings

MASK = "***"
_MIN_LENGTH = 6
"""Characters. Shorter values would mask ordinary words."""
MIN_START = 4
"""Characters of a secret that are masked where a text was cut off within the secret."""
_CUT = "…"
"""Where `mcpd.model.text.shorten` has cut a text."""
_MAX_CUTS = 16
"""How many cuts are examined, from the end: the text between them may be a server's."""
_MAX_SETS_PER_SERVER = 100
"""How many different sets of secrets are remembered for each server: enough for dozens of starts."""
_GENERATIONS = 2
"""How many sets of tokens are remembered for each login: the current one, and one that was replaced."""
_TOKEN_START = 32
"""Characters of a long token that are stored. Whatever begins like it is masked to its end."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""A token of which only the start is stored (RFC 6750, 2.1)."""
_TOKEN_REST = re.compile(r"[A-Za-z0-9._~+/=%-]*")
"""The same, also if it is percent-encoded."""


class _Index:
    """Finds known spellings in a text. Other threads may search while one adds.

    A regular expression finds where the first characters are possible, without looking at their combination,
    so that it is built quickly; a table contains the combinations. The time of a search is linear in the
    length of the text and does not grow with the number of spellings.
    """

    def __init__(self, spellings: Iterable[str] = ()) -> None:
        self._lengths: dict[str, tuple[int, ...]] = {}
        """The first characters of spellings → the lengths of these spellings, the longest first."""
        self._spellings: set[str] = set()
        self._sorted: list[str] = []
        self._starts: set[str] = set()
        """Those spellings that are the start of a token."""
        self._characters: tuple[set[str], ...] = tuple(set() for _ in range(_MIN_LENGTH))
        """The characters that occur at each of the first positions."""
        self._candidate = re.compile("(?!)")
        self.add(spellings)

    def add(self, spellings: Iterable[str], *, are_starts: bool = False) -> None:
        """Find these, which have at least `_MIN_LENGTH` characters, from now on.

        `are_starts`: what follows belongs to them, as far as it has the characters of a token.
        """
        if are_starts:
            spellings = frozenset(spellings) - self._starts
            self._starts |= spellings
        for spelling in spellings:
            if spelling in self._spellings:
                continue
            self._spellings.add(spelling)
            bisect.insort(self._sorted, spelling)
            start, length = spelling[:_MIN_LENGTH], len(spelling)
            lengths = self._lengths.get(start, ())
            if length not in lengths:
                self._lengths[start] = tuple(sorted((*lengths, length), reverse=True))
            for characters, character in zip(self._characters, start, strict=True):
                characters.add(character)
        if self._spellings:
            classes = ("".join(map(re.escape, sorted(each))) for each in self._characters)
            self._candidate = re.compile("".join(f"[{each}]" for each in classes), re.DOTALL)

    def remove(self, starts: Iterable[str]) -> None:
        """Do not find these any more, which were added with `are_starts`. Takes microseconds."""
        for spelling in starts:
            self._starts.discard(spelling)
            self._spellings.discard(spelling)
            at = bisect.bisect_left(self._sorted, spelling)
            if self._sorted[at : at + 1] == [spelling]:
                del self._sorted[at]

    def mask(self, text: str) -> str:
        """Replace every spelling by MASK; where several begin, the longest."""
        text = _replace(text, self._find(text))
        if "\\" not in text:
            return text
        unescaped = Unescaped(text)
        found = self._find(unescaped.text)
        return _replace(text, [(unescaped.origin(start), unescaped.origin(end)) for start, end in found])

    def _find(self, text: str) -> list[tuple[int, int]]:
        search, lengths, known = self._candidate.search, self._lengths, self._spellings
        places: list[tuple[int, int]] = []
        here = 0
        while candidate := search(text, here):
            here = candidate.start()
            for length in lengths.get(candidate[0], ()):
                if (found := text[here : here + length]) in known:
                    end = here + length
                    if found in self._starts:
                        rest = _TOKEN_REST.match(text, end)
                        end = end if rest is None else rest.end()
                    places.append((here, end))
                    here = end
                    break
            else:
                here += 1
        return places

    def mask_end(self, text: str, least: int) -> str:
        """Replace the longest end of `text` that starts a spelling, and has at least `least` characters."""
        unescaped = Unescaped(text)
        known, end = self._sorted, unescaped.text
        for here in range(len(end) - least + 1):
            if len(end) - here >= _MIN_LENGTH and end[here : here + _MIN_LENGTH] not in self._lengths:
                continue
            rest = end[here:]
            at = bisect.bisect_left(known, rest)
            if any(each.startswith(rest) for each in known[at : at + 1]):
                return text[: unescaped.origin(here)] + MASK
        return text


def _replace(text: str, places: list[tuple[int, int]]) -> str:
    """Replace these places, in order, by MASK."""
    if not places:
        return text
    parts: list[str] = []
    kept = 0
    for start, end in places:
        parts += (text[kept:start], MASK)
        kept = end
    return "".join((*parts, text[kept:]))


class Redactor:
    """Knows all secret values in use. The daemon has one instance."""

    def __init__(self) -> None:
        self._always: frozenset[str] = frozenset()
        self._recent: dict[str, list[frozenset[str]]] = {}
        """Server → the sets of secrets of its last starts, newest last."""
        self._known: Counter[str] = Counter()
        """Secret → in how many sets it is."""
        self._forgotten = 0
        """Secrets that the index still finds although no set contains them."""
        self._index = _Index()
        self._logins: dict[str, list[frozenset[str]]] = {}
        """Login → the spellings of its last tokens, newest last."""
        self._starts: Counter[str] = Counter()
        """Spelling of a token → in how many of these sets it is."""
        self._tokens = _Index()

    def add(self, secrets: Iterable[str], of: str = "") -> None:
        """Mask these values from now on, in all their `spellings`.

        With `of` (a server), only the last sets of that server are kept, since a command may return a new
        token for every start.
        """
        values = frozenset(secret for secret in secrets if len(secret) >= _MIN_LENGTH)
        if not of:
            self._use(values - self._always)
            self._always |= values
        elif values:
            lately = self._recent.setdefault(of, [])
            if values in lately:
                lately.remove(values)
            else:
                self._use(values)
            lately.append(values)
            if len(lately) > _MAX_SETS_PER_SERVER:
                self._forget(lately.pop(0))

    def add_tokens(self, tokens: Iterable[str], of: str) -> None:
        """Mask the tokens of a login from now on, and no longer those before its previous ones.

        Takes less than a millisecond whatever their length: a long token is recognized by its start, so
        that others with the same start, as signed tokens of one server often have, are masked as well.
        """
        spelled = frozenset(
            each
            for token in tokens
            for each in spellings(
                token[:_TOKEN_START] if len(token) > _TOKEN_START and _TOKEN.fullmatch(token) else token
            )
        )
        recent = self._logins.setdefault(of, [])
        if spelled in recent:
            recent.remove(spelled)
            recent.append(spelled)
            return
        self._starts.update(spelled)
        self._tokens.add(spelled, are_starts=True)
        recent.append(spelled)
        if len(recent) > _GENERATIONS:
            self._drop_starts(recent.pop(0))

    def forget_tokens(self, of: str) -> None:
        """Do not mask the tokens of this login any more, because they were revoked."""
        for spelled in self._logins.pop(of, ()):
            self._drop_starts(spelled)

    def _drop_starts(self, spelled: frozenset[str]) -> None:
        self._starts.subtract(spelled)
        unused = [each for each in spelled if self._starts[each] <= 0]
        for each in unused:
            del self._starts[each]
        self._tokens.remove(unused)

    def mask_within(self, value: object) -> object:
        """Mask every string in plain data; keys stay."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {key: self.mask_within(inner) for key, inner in value.items()}
        return [self.mask_within(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    def mask(self, text: str) -> str:
        """Return `text` with MASK for every secret, and for the start of one before a `…`."""
        if not self._known and not self._starts:
            return text
        text = self._index.mask(text)
        if self._starts:
            text = self._tokens.mask(text)
        return self._mask_before_cuts(text) if _CUT in text else text

    def mask_cut(self, text: str, least: int = MIN_START) -> str:
        """Like `mask` for a text whose rest is missing: it may end with `least` characters of a secret."""
        return self._mask_end(self.mask(text), least)

    def _mask_end(self, text: str, least: int) -> str:
        text = self._index.mask_end(text, least)
        return self._tokens.mask_end(text, least) if self._starts else text

    def _mask_before_cuts(self, text: str) -> str:
        *cut, rest = text.rsplit(_CUT, _MAX_CUTS)
        return _CUT.join((*(self._mask_end(part, MIN_START) for part in cut), rest))

    def _use(self, secrets: frozenset[str]) -> None:
        new: set[str] = set()
        for secret in secrets:
            if not self._known[secret]:
                new |= spellings(secret)
            self._known[secret] += 1
        if new:
            self._index.add(new)

    def _forget(self, secrets: frozenset[str]) -> None:
        """Remove a set. The index is built again once half of it is out of date."""
        for secret in secrets:
            self._known[secret] -= 1
            if not self._known[secret]:
                del self._known[secret]
                self._forgotten += 1
        if self._forgotten > len(self._known):
            self._forgotten = 0
            self._index = _Index(each for secret in self._known for each in spellings(secret))
