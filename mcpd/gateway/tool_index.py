"""Ranks tools by how well they fit a few words: like BM25, with fields and with words of like meaning.

An index exists only where somebody searches. It is built and searched in steps, and reads at most some
kilobytes of each tool and of a query, whatever servers and clients send.
"""

from __future__ import annotations

import functools
import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Raw

from mcpd.model.steps import Steps
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

MAX_TEXT, _MAX_ARGUMENTS, _MAX_SCHEMA = 2000, 50, 256 * 1024
"""Characters, arguments, and bytes of a schema that are read of a tool."""
_MAX_QUERY, _MAX_TERMS, _MAX_LONGER = 4000, 24, 10
"""Characters and words that are read of a query, and words of tools that begin with one of them."""
_PORTION = 20
"""Tools in one step, each of which takes about 0.1 ms."""
_FIELDS = ((3.0, 4), (2.0, 12), (0.5, 40), (0.25, 40))
"""The weight and usual length, in words, of: name and server, first sentence, other sentences, arguments."""
_LENGTH_PENALTY = 0.6
_RARITY = 0.75
"""The exponent of a word's rarity: in a sentence, a rare word says less than in a list of keywords."""
_RELATED = 0.5
"""The weight of a word with a like meaning, or that begins with a word of the query."""
_ALL_WORDS = 3.0
"""How much a tool gains that has all words of the query."""
_SURE = 0.35
"""The part of a query's words, weighted by their rarity, that a tool must have to fit."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+|\d+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
_COMMON_WORDS = """
a about all an and any are as at be by can current do does for from give have how i in into is it its me
my need new of on one or our please should so some tell that the their them then there these this to tool
tools up use using want was we what when where which who why will with would you your
"""
_LIKE_MEANINGS = """
create add new make insert write plan
delete remove drop destroy erase forget clear discard
show list get read display view fetch retrieve see
update edit change modify set replace
find search look query lookup
user people person member who
picture image photo screenshot
comment note reply answer
assign give
copy duplicate clone fork
notify watch subscribe notification
phone call
run execute start trigger launch
stop end kill terminate cancel abort close
folder directory
file document
error failure fail bug problem
upload attach send
page website site web url
repository repo project
ticket issue bug task
connect link associate
voice speech audio recording sound
number count many
time date when
allow permission access policy
check validate verify test
table database
row record
route directions way
summarize aggregate group
chart diagram graph plot draw visualize
save store write
"""
_ENDINGS = (
    ("ies", 5, "y"),
    ("sses", 6, "ss"),
    ("shes", 6, "sh"),
    ("ches", 6, "ch"),
    ("xes", 5, "x"),
    ("ings", 7, ""),
    ("ing", 6, ""),
    ("ers", 6, ""),
    ("er", 6, ""),
    ("or", 6, ""),
    ("ed", 5, ""),
    ("tion", 7, "t"),
    ("ss", 3, "ss"),
    ("us", 3, "us"),
    ("is", 3, "is"),
    ("s", 4, ""),
)
"""(ending, shortest word that loses it, what replaces it)"""


def words(text: str) -> list[str]:
    """Split a text and the names in it: `getFile_contents` → get, file, contents."""
    return [word.lower() for word in _WORD.findall(text)]


def _stem(word: str) -> str:
    """Return what the forms of an English word have in common, roughly."""
    for ending, shortest, instead in _ENDINGS:
        if len(word) >= shortest and word.endswith(ending):
            word = word[: -len(ending)] + instead
            break
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl" else word


_COMMON = frozenset(_COMMON_WORDS.split())


@functools.cache
def _related() -> Mapping[str, Sequence[str]]:
    """Return the words of like meaning, by word."""
    found: dict[str, list[str]] = {}
    for line in _LIKE_MEANINGS.strip().splitlines():
        group = [_stem(word) for word in line.split()]
        for word in group:
            found.setdefault(word, []).extend(each for each in group if each != word)
    return found


class ToolIndex:
    """The tools of one list, by their positions in it."""

    def __init__(self, postings: Mapping[str, tuple[array[int], array[float]]], size: int) -> None:
        """`postings`: stem → the positions of the tools that contain it, and its weight in each."""
        self._postings = postings
        self._stems = sorted(postings)
        self._size = size

    def search(self, query: str) -> Steps[tuple[Sequence[int], bool]]:
        """Return the positions of all tools that contain words of the query, the best first, and whether the
        first one fits, so that it is worth a try."""
        found = dict.fromkeys(words(query[:_MAX_QUERY]))
        terms = list(dict.fromkeys(_stem(word) for word in found if word not in _COMMON))[:_MAX_TERMS]
        scores: dict[int, float] = {}
        counts: dict[int, int] = {}
        rarities: list[float] = []
        matches: list[Mapping[int, float]] = []
        for term in terms:
            best: dict[int, float] = {}
            for stem, factor in self._alternatives(term):
                positions, weights = self._postings[stem]
                factor *= self._rarity(len(positions)) ** _RARITY
                for position, weight in zip(positions, weights, strict=True):
                    if (score := weight * factor) > best.get(position, 0.0):
                        best[position] = score
                yield
            for position, score in best.items():
                scores[position] = scores.get(position, 0.0) + score
                counts[position] = counts.get(position, 0) + 1
            rarities.append(self._rarity(len(best)))
            matches.append(best)
            yield
        for position, count in counts.items():
            scores[position] *= 1 + _ALL_WORDS * count / len(terms)
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)
        if not ranked:
            return (), False
        has = sum(rarity for rarity, best in zip(rarities, matches, strict=True) if ranked[0] in best)
        return ranked, has >= _SURE * sum(rarities)

    def _alternatives(self, term: str) -> Iterator[tuple[str, float]]:
        """Yield the indexed stems that a word of a query may stand for, each with a factor."""
        if term in self._postings:
            yield term, 1.0
        for stem in _related().get(term, ()):
            if stem in self._postings:
                yield stem, _RELATED
        if len(term) > 3:
            start = bisect_left(self._stems, term)
            for stem in self._stems[start : start + _MAX_LONGER]:
                if stem != term and stem.startswith(term):
                    yield stem, _RELATED

    def _rarity(self, count: int) -> float:
        return math.log(1 + (self._size - count + 0.5) / (count + 0.5))


def build_tool_index(entries: Iterable[bytes], servers: Iterable[str]) -> Steps[ToolIndex]:
    """Index the entries of a list of tools, each with the name of its server."""
    postings: dict[str, tuple[array[int], array[float]]] = {}
    stems: dict[str, str] = {}
    size = 0
    for entry, server in zip(entries, servers, strict=True):
        found: dict[str, float] = {}
        for text, (weight, usual) in zip(_texts(entry, server), _FIELDS, strict=True):
            every = words(text)
            weight /= 1 - _LENGTH_PENALTY + _LENGTH_PENALTY * len(every) / usual
            for word in dict.fromkeys(every):
                if (stem := stems.get(word)) is None:
                    stem = stems[word] = _stem(word)
                found[stem] = found.get(stem, 0.0) + weight
        for stem, weight in found.items():
            if stem not in postings:
                postings[stem] = array("I"), array("f")
            positions, weights = postings[stem]
            positions.append(size)
            weights.append(weight)
        size += 1
        if not size % _PORTION:
            yield
    return ToolIndex(postings, size)


def _texts(entry: bytes, server: str) -> tuple[str, str, str, str]:
    """Return the text of each field."""
    members = wire.members(entry)
    name, title, description = (
        wire.string_or(members, each)[:MAX_TEXT] for each in ("name", "title", "description")
    )
    description = f"{title} {description.replace(f'[{server}]', '', 1)}".strip()
    first, *rest = SENTENCE_END.split(description, maxsplit=1)
    return f"{server} {name.removeprefix(server)}", first, " ".join(rest), _arguments(members)


def _arguments(members: Mapping[str, Raw]) -> str:
    """Return the names and descriptions of a tool's arguments."""
    properties, texts = input_schema(members).get("properties"), []
    for name, shape in list(properties.items())[:_MAX_ARGUMENTS] if isinstance(properties, dict) else ():
        text = shape.get("description") if isinstance(shape, dict) else None
        texts.append(f"{name[:100]} {text[:200] if isinstance(text, str) else ''}")
    return " ".join(texts)


def input_schema(members: Mapping[str, Raw]) -> Mapping[str, object]:
    """Return the schema of a tool's arguments; empty if it is too long, or cannot be decoded."""
    schema = members.get("inputSchema", Raw(b"{}"))
    try:
        return wire.mapping(schema) if len(schema) <= _MAX_SCHEMA else {}
    except BadFrame:
        return {}
