"""Reading a text without its escapes, so that one search finds a secret however often it was escaped.

Escapes are those of programming languages and JSON, percent-encoding, HTML entities, and characters that a
terminal does not show.
"""

from __future__ import annotations

import bisect
import copy
import re
from collections.abc import Iterable

Place = tuple[int, int]
"""Where a part of a text begins and ends."""

_MAX_ROUNDS = 4
"""How often the result is read again, because escapes of different kinds may contain each other."""
_ASCII_ENTITIES = (
    "Tab\t NewLine\n excl! quot\" num# dollar$ percnt% amp& apos' lpar( rpar) ast* midast* plus+ comma, "
    "period. sol/ colon: semi; lt< equals= gt> quest? commat@ lsqb[ lbrack[ bsol\\ rsqb] rbrack] Hat^ "
    'lowbar_ UnderBar_ grave` lcub{ lbrace{ verbar| vert| VerticalLine| rcub} rbrace} QUOT" AMP& LT< GT>'
)
_LATIN1_ENTITIES = (  # in the order of their code points
    "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 "
    "sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc "
    "Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve "
    "Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN szlig agrave aacute "
    "acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth ntilde "
    "ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml"
)
_ENTITIES = {each[:-1]: each[-1] for each in _ASCII_ENTITIES.split(" ")}
_ENTITIES |= {name: chr(0xA0 + number) for number, name in enumerate(_LATIN1_ENTITIES.split())}
"""The names in HTML. The module `html` would bring a table of 0.3 MB with it."""
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_INVISIBLE = (
    r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufe00-\ufe0f\ufeff\ufff9-\uffff\U000e0000-\U000e0fff"
)
"""Control and format characters, and the replacement for bytes that are no text. UTF-16 contains NUL."""
# The first part finds the places quickly. Nothing below can match in two ways, so the time is linear.
_ESCAPE = re.compile(
    rf"[\\%&{_INVISIBLE}](?:"
    r"(?<=\\)\\*(?:u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|([0-3][0-7]{2})"
    rf"|([bfnrt])|([^{_INVISIBLE}])|)"
    r"|(?<=%)(?:u([0-9a-fA-F]{4})|(?:25)*([0-9a-fA-F]{2}))"
    rf"|(?<=&)(?:amp;)*(?:#[xX]([0-9a-fA-F]{{1,6}});?|#([0-9]{{1,7}});?|({'|'.join(_ENTITIES)});)"
    r"|(?<=[\x1b\x9b])(?:(?<=\x9b)|\[)[0-?]*+[ -/]*+[@-~]"  # of a terminal: colors
    r"|(?<=\x1b)[\]PX^_][^\x07\x1b]*+(?:\x07|\x1b\\)"  # titles
    r"|(?<=\x1b)[ -/]++[0-~]"  # character sets
    rf"|(?<=[{_INVISIBLE}])[{_INVISIBLE}]*)",
    re.DOTALL,
)
_LINES = re.compile(r"[\n\r\t]+")
_BASES = (0, 16, 16, 16, 16, 8, 0, 0, 16, 16, 16, 10, 0)
"""The base of the number in each group of `_ESCAPE`."""
_NAMED = {6: _CONTROLS, 12: _ENTITIES}


def _character(found: re.Match[str]) -> str:
    """Return the character that an escape stands for; nothing if it stands for none."""
    group = found.lastindex
    if group is None:
        return ""
    if base := _BASES[group]:
        code = int(found[group], base)
        return chr(code) if code < 0x110000 else ""
    return _NAMED[group][found[group]] if group in _NAMED else found[group]


class Unescaped:
    """A text in which every escape is its character, and characters that are not shown are missing.

    JSON, JSON inside JSON, and Python's `repr` of a text are equal in this form, and so is the text itself.
    `text` is the source itself if there is no escape.
    """

    def __init__(self, source: str) -> None:
        self.text = source
        self._rounds: list[tuple[re.Pattern[str], str]] = []
        self._unescape()

    def _unescape(self) -> None:
        for _ in range(_MAX_ROUNDS):
            if not self._replace(_ESCAPE):
                break

    def _replace(self, pattern: re.Pattern[str]) -> bool:
        if not pattern.search(self.text):
            return False
        text = pattern.sub(_character, self.text)
        if text == self.text:
            return False
        self._rounds.append((pattern, self.text))
        self.text = text
        return True

    def joined_lines(self) -> Unescaped:
        """Return this text without its line breaks and tabs; itself if it has none."""
        joined = copy.copy(self)
        joined._rounds = self._rounds.copy()
        if not joined._replace(_LINES):
            return self
        joined._unescape()
        return joined

    def origins(self, places: Iterable[Place]) -> list[Place]:
        """Return which parts of the source these parts of `text` stem from, whole escapes included."""
        found = list(places)
        for pattern, before in reversed(self._rounds):
            found = _origins(pattern, before, found) if found else found
        return found


def _origins(pattern: re.Pattern[str], source: str, places: list[Place]) -> list[Place]:
    """Like `Unescaped.origins` for one round."""
    at: list[int] = []
    parts: list[tuple[int, int, bool]] = []
    """Where in the source, and whether it is an escape. `at` has their beginnings in the result."""
    size = end = 0
    for found in (*pattern.finditer(source), None):
        start, stop = found.span() if found else (len(source), len(source))
        if start > end:
            at.append(size)
            parts.append((end, start, False))
            size += start - end
        if found and _character(found):
            at.append(size)
            parts.append((start, stop, True))
            size += 1
        end = stop

    def origin(position: int) -> Place:
        """Return where the character at this position stems from."""
        here = bisect.bisect_right(at, position) - 1
        start, stop, escaped = parts[here]
        return (start, stop) if escaped else (start + position - at[here], start + position - at[here] + 1)

    return [(origin(start)[0], origin(end - 1)[1]) for start, end in places]


def unescape(text: str) -> str:
    return Unescaped(text).text


_INCOMPLETE = re.compile(
    r"(?:\\(?:u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|x[0-9a-fA-F]?)?|%[0-9a-fA-F]?|&[#A-Za-z0-9;]{0,12})\Z"
)


def without_incomplete_escape(text: str) -> str:
    """Return the text of which the rest is missing without the part of an escape at its end."""
    tail = text[-16:]
    return text[: len(text) - len(tail)] + _INCOMPLETE.sub("", tail)
