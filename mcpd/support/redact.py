"""Masks secrets by value, however they are spelled, in logs and in everything that mcpd shows."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from mcpd.support.encodings import find_encoded, find_encoded_end
from mcpd.support.escapes import Place, Unescaped, without_incomplete_escape
from mcpd.support.spellings import spellings
from mcpd.support.token_index import HEAD, TokenIndex, is_token

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
        self._characters: tuple[set[str], ...] = tuple(set() for _ in range(_MIN_LENGTH))
        """The characters that occur at each of the first positions."""
        self._candidate = re.compile("(?!)")
        self.add(spellings)

    def add(self, spellings: Iterable[str]) -> None:
        """Find these, which have at least `_MIN_LENGTH` characters, from now on."""
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

    def find(self, text: str) -> list[Place]:
        """Return where spellings begin and end. If several begin at one place, the longest counts."""
        search, lengths, known = self._candidate.search, self._lengths, self._spellings
        places: list[Place] = []
        here = 0
        while candidate := search(text, here):
            here = candidate.start()
            for length in lengths.get(candidate[0], ()):
                if text[here : here + length] in known:
                    places.append((here, here + length))
                    here += length
                    break
            else:
                here += 1
        return places

    def find_cut(self, text: str, least: int) -> int | None:
        """Return the index of the longest suffix of `text` that begins a spelling; None if there is none.

        It has at least `least` characters.
        """
        known = self._sorted
        for here in range(len(text) - least + 1):
            if len(text) - here >= _MIN_LENGTH and text[here : here + _MIN_LENGTH] not in self._lengths:
                continue
            rest = text[here:]
            at = bisect.bisect_left(known, rest)
            if any(each.startswith(rest) for each in known[at : at + 1]):
                return here
        return None


def _replace(text: str, places: list[Place]) -> str:
    """Replace these places by MASK. Those that overlap count as one."""
    parts: list[str] = []
    kept = 0
    for start, end in sorted(places):
        if start >= kept:
            parts += (text[kept:start], MASK)
        kept = max(kept, end)
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
        self._logins: dict[str, tuple[str, ...]] = {}
        """Login → the heads of its last tokens, newest last. Joined by a space, because there may be hundreds
        of logins."""
        self._tokens = TokenIndex()

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

        Takes less than a millisecond whatever their length: a token is recognized by its start, so that
        others with the same start, as signed tokens of one server often have, are masked as well.
        """
        values = tuple(dict.fromkeys(tokens))
        if odd := [each for each in values if not is_token(each)]:
            self.add(odd, of=f"login {of}")
        heads = " ".join(each[:HEAD] for each in values if is_token(each))
        before = self._logins.get(of, ())
        if heads in before:
            self._logins[of] = (*(each for each in before if each != heads), heads)
            return
        self._tokens.add(heads.split())
        self._logins[of] = (*before, heads)[-_GENERATIONS:]
        for dropped in (*before, heads)[:-_GENERATIONS]:
            self._tokens.remove(dropped.split())

    def forget_tokens(self, of: str) -> None:
        """Stop masking the tokens of this login, because they were revoked."""
        for values in self._recent.pop(f"login {of}", ()):
            self._forget(values)
        for dropped in self._logins.pop(of, ()):
            self._tokens.remove(dropped.split())

    def mask_within(self, value: object) -> object:
        """Mask every string in plain data; keys stay."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {key: self.mask_within(inner) for key, inner in value.items()}
        return [self.mask_within(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    def mask(self, text: str) -> str:
        """Return `text` with MASK for every secret, and for the start of one before a `…`."""
        if not self._known and not self._logins:
            return text
        if places := self._find(text):
            text = _replace(text, places)
        return self._mask_before_cuts(text) if _CUT in text else text

    def mask_cut(self, text: str, least: int = MIN_START) -> str:
        """Like `mask` for a text whose rest is missing: it may end with `least` characters of a secret."""
        return self._mask_end(self.mask(text), least)

    def _find(self, text: str) -> list[Place]:
        """Return where secrets are: as they are, escaped, and encoded."""
        places = self._find_plain(text)
        unescaped = Unescaped(text)
        inside = find_encoded(unescaped.text, self._contains)
        if unescaped.text is not text:
            inside += self._find_plain(unescaped.text)
        places += unescaped.origins(inside)
        if (joined := unescaped.joined_lines()) is not unescaped:
            inside = [*self._index.find(joined.text), *find_encoded(joined.text, self._contains)]
            places += joined.origins(inside)
            if self._logins:  # a token that was found on one line does not continue with the next
                starts = {start for start, _ in places}
                tokens = joined.origins(self._tokens.find(joined.text))
                places += (place for place in tokens if place[0] not in starts)
        return places

    def _find_plain(self, text: str) -> list[Place]:
        return [*self._index.find(text), *self._tokens.find(text)] if self._logins else self._index.find(text)

    def _contains(self, text: str) -> bool:
        return bool(self._find_plain(text))

    def _mask_end(self, text: str, least: int) -> str:
        unescaped = Unescaped(without_incomplete_escape(text))
        end = without_incomplete_escape(unescaped.text)
        starts = [
            self._index.find_cut(end, least),
            self._tokens.find_cut(end, least) if self._logins else None,
            find_encoded_end(end, self._may_begin),
        ]
        here = min((start for start in starts if start is not None), default=None)
        return text if here is None else text[: unescaped.origins([(here, here + 1)])[0][0]] + MASK

    def _may_begin(self, text: str) -> bool:
        """Return whether the end of a decoded text is the start of a secret."""
        cut = self._index.find_cut(text, MIN_START)
        return cut is not None or (bool(self._logins) and self._tokens.find_cut(text, MIN_START) is not None)

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
