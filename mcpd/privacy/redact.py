"""Masks secrets by value in logs and in everything that mcpd shows."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from mcpd.privacy.secret_forms import MIN_LENGTH, secret_forms

MASK = "***"
MIN_START = 4
"""Characters of a secret that are masked where a text was cut off within the secret."""
_CUT = "…"
"""Where `mcpd.model.text.shorten` has cut a text."""
_MAX_CUTS = 16
"""How many cuts are examined, from the end: the text between them may be a server's."""
_SETS_OF_SERVER = 100
"""How many different sets of secrets are remembered for each server: enough for dozens of starts."""
_SETS_OF_LOGIN = 2
"""How many sets of tokens are remembered for each login: the current one, and one that was replaced."""
_SEARCHED = 16 * 1024
"""Characters of a text of which only the start is kept."""
_ESCAPE = re.compile(r"\\+u([0-9A-Fa-f]{4})")
"""Of a character in JSON."""
_Place = tuple[int, int]
"""Where a part of a text begins and ends."""


class _Index:
    """Finds known forms in a text. Other threads may search while one adds or removes.

    A regular expression finds where the first characters are possible, without looking at their combination,
    so that it is built quickly; a table contains the combinations. The time of a search is linear in the
    length of the text and does not grow with the number of forms.
    """

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()
        """Form → of how many secrets it is one."""
        self._sorted: list[str] = []
        self._lengths: dict[str, tuple[int, ...]] = {}
        """The first characters of forms → the lengths of these forms, the longest first."""
        self._candidate = re.compile("(?!)")

    def add(self, forms: Iterable[str]) -> None:
        """Find these, which have at least MIN_LENGTH characters, from now on."""
        new = []
        for form in forms:
            self._uses[form] += 1
            if self._uses[form] == 1:
                bisect.insort(self._sorted, form)
                new.append(form)
        self._update(new)

    def remove(self, forms: Iterable[str]) -> None:
        """Stop finding these unless they were added more often."""
        gone = []
        for form in forms:
            self._uses[form] -= 1
            if not self._uses[form]:
                del self._uses[form]
                del self._sorted[bisect.bisect_left(self._sorted, form)]
                gone.append(form)
        self._update(gone)

    def _update(self, changed: Iterable[str]) -> None:
        for start in {form[:MIN_LENGTH] for form in changed}:
            lengths = set()
            for form in self._sorted[bisect.bisect_left(self._sorted, start) :]:
                if not form.startswith(start):
                    break
                lengths.add(len(form))
            if lengths:
                self._lengths[start] = tuple(sorted(lengths, reverse=True))
            else:
                self._lengths.pop(start, None)
        characters = (sorted(set(each)) for each in zip(*self._lengths, strict=True))
        pattern = "".join(f"[{''.join(map(re.escape, each))}]" for each in characters)
        self._candidate = re.compile(pattern or "(?!)", re.DOTALL)

    def find(self, text: str) -> list[_Place]:
        """Return where forms begin and end. If several begin at one place, the longest counts."""
        search, lengths, known = self._candidate.search, self._lengths, self._uses
        places: list[_Place] = []
        here = 0
        while candidate := search(text, here):
            here = candidate.start()
            for length in lengths.get(candidate[0], ()):
                if text[here : here + length] in known:
                    if places and here < (end := places[-1][1]):  # a secret may overlap with itself
                        places[-1] = (places[-1][0], max(end, here + length))
                    else:
                        places.append((here, here + length))
                    break
            here += 1
        return places

    def find_cut(self, text: str, least: int) -> int | None:
        """Return the index of the longest suffix of `text` that begins a form; None if there is none.

        It has at least `least` characters.
        """
        for here in range(len(text) - least + 1):
            if len(text) - here >= MIN_LENGTH and text[here : here + MIN_LENGTH] not in self._lengths:
                continue
            rest = text[here:]
            at = bisect.bisect_left(self._sorted, rest)
            if any(form.startswith(rest) for form in self._sorted[at : at + 1]):
                return here
        return None


class Redactor:
    """Knows all secret values in use. The daemon has one instance."""

    def __init__(self) -> None:
        self._always: frozenset[str] = frozenset()
        self._recent: dict[str, list[frozenset[str]]] = {}
        """Server or login → its last sets of secrets, newest last."""
        self._known: Counter[str] = Counter()
        """Secret → in how many sets it is."""
        self._index = _Index()

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._known)} secrets>"

    def add(self, secrets: Iterable[str], of: str = "") -> None:
        """Mask these values from now on, in all their `secret_forms`.

        With `of` (a server), only the last sets of that server are kept, since a command may return a new
        token for every start.
        """
        values = frozenset(secret for secret in secrets if len(secret) >= MIN_LENGTH)
        if of:
            self._remember(of, values, _SETS_OF_SERVER)
        else:
            self._use(values - self._always)
            self._always |= values

    def add_tokens(self, tokens: Iterable[str], of: str) -> None:
        """Mask the tokens of a login from now on, and no longer those before its previous ones."""
        values = frozenset(token for token in tokens if len(token) >= MIN_LENGTH)
        self._remember(f"login {of}", values, _SETS_OF_LOGIN)

    def secrets(self) -> list[str]:
        """Return all secret values in use."""
        return list(self._known)

    def forget_tokens(self, of: str) -> None:
        """Stop masking the tokens of this login, because they were revoked."""
        for values in self._recent.pop(f"login {of}", ()):
            self._forget(values)

    def mask_within(self, value: object) -> object:
        """Mask every string in plain data; keys stay."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {key: self.mask_within(inner) for key, inner in value.items()}
        return [self.mask_within(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    def mask(self, text: str) -> str:
        """Return `text` with MASK for every secret, and for the start of one before a `…`."""
        if not self._known:
            return text
        parts: list[str] = []
        kept = 0
        for start, end in self._index.find(text):
            parts += (text[kept:start], MASK)
            kept = end
        text = "".join((*parts, text[kept:]))
        if _CUT not in text:
            return text
        *cut, rest = text.rsplit(_CUT, _MAX_CUTS)
        return _CUT.join((*(self._mask_end(part, MIN_START) for part in cut), rest))

    def mask_cut(self, text: str, least: int = MIN_START) -> str:
        """Like `mask` for a text whose rest is missing: it may end with `least` characters of a secret."""
        return self._mask_end(self.mask(text), least)

    def mask_start(self, text: str, length: int, *, is_cut: bool = False) -> str:
        """Return the start of the masked text. `is_cut`: the end of the text is missing."""
        part = text[:_SEARCHED]
        masked = self.mask_cut(part, 1) if is_cut or len(part) < len(text) else self.mask(part)
        # Any character of a secret may be escaped.
        plain = unquote(_ESCAPE.sub(lambda found: chr(int(found[1], 16)), masked))
        if plain != masked and (found := self.mask(plain)) != plain:
            masked = found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return masked[:length]

    def _mask_end(self, text: str, least: int) -> str:
        start = self._index.find_cut(text, least)
        return text if start is None else text[:start] + MASK

    def _remember(self, of: str, values: frozenset[str], most: int) -> None:
        if not values:
            return
        lately = self._recent.setdefault(of, [])
        if values in lately:
            lately.remove(values)
        else:
            self._use(values)
        lately.append(values)
        if len(lately) > most:
            self._forget(lately.pop(0))

    def _use(self, secrets: frozenset[str]) -> None:
        new = [secret for secret in secrets if not self._known[secret]]
        self._known.update(secrets)
        self._index.add(form for secret in new for form in secret_forms(secret))

    def _forget(self, secrets: frozenset[str]) -> None:
        self._known.subtract(secrets)
        gone = [secret for secret in secrets if not self._known[secret]]
        for secret in gone:
            del self._known[secret]
        self._index.remove(form for secret in gone for form in secret_forms(secret))
