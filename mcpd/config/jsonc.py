"""JSON as people write it: comments and trailing commas allowed, everything else strict.

Comments and trailing commas are overwritten with blanks before the standard parser sees the text,
so its line and column are those of the file.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NoReturn


class JsoncSyntaxError(ValueError):
    """The text is not in its format. `line` and `column` count from 1, as editors do."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column

    @classmethod
    def at_offset(cls, message: str, text: str, offset: int) -> JsoncSyntaxError:
        start = text.rfind("\n", 0, offset) + 1
        return cls(message, text.count("\n", 0, offset) + 1, offset - start + 1)


class JsonObject(dict[str, object]):
    """A JSON object that remembers which of its keys were written more than once."""

    duplicates: tuple[str, ...] = ()


_STRING = r'"(?:\\.|[^"\\\r\n])*"?'
_COMMENTS = re.compile(rf"{_STRING}|(?P<comment>//[^\r\n]*|/\*(?:.|\n)*?\*/)|(?P<open>/\*)")
_TOKENS = re.compile(rf"{_STRING}|\S")
_INK = re.compile(r"\S")


def blank_comments(text: str) -> str:
    """The same text, character for character in the same place, with blanks where comments were.

    Raises JsoncSyntaxError for a comment that never ends.
    """
    if _is_standard(text):
        return text

    def erase(found: re.Match[str]) -> str:
        if found["open"]:
            raise JsoncSyntaxError.at_offset("this comment is never closed by */", text, found.start())
        return _INK.sub(" ", found[0]) if found["comment"] else found[0]

    return _COMMENTS.sub(erase, text)


def to_standard_json(text: str) -> str:
    """Likewise, with blanks where trailing commas were as well: standard JSON. Raises JsoncSyntaxError."""
    if _is_standard(text):
        return text
    bare = blank_comments(text)
    characters = list(bare)
    before, last, comma = "", "", -1
    for token in _TOKENS.finditer(bare):
        if token[0] in ("}", "]") and last == "," and before not in ("", ",", "[", "{", ":"):
            characters[comma] = " "
        if token[0] == ",":
            comma = token.start()
        before, last = last, token[0]
    return "".join(characters)


@lru_cache(maxsize=2)
def _is_standard(text: str) -> bool:
    """Whether it is standard JSON already. Editors keep their history in it: 10 MB, 20 times asked for."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def parse_jsonc(text: str) -> object:
    """Plain values; objects are `JsonObject`. An empty text is an empty object. Raises JsoncSyntaxError."""
    try:
        return _loads(text)  # most files have no comments, and some are long
    except (ValueError, RecursionError):
        pass  # what is wrong with it is found out below, if anything is
    bare = to_standard_json(text)
    if not bare.strip():
        return JsonObject()
    try:
        return _loads(bare)
    except json.JSONDecodeError as error:
        raise JsoncSyntaxError(error.msg, error.lineno, error.colno) from None
    except RecursionError:
        raise JsoncSyntaxError("nested too deeply", 1, 1) from None
    except ValueError as error:
        raise JsoncSyntaxError(str(error), 1, 1) from None


def _loads(text: str) -> object:
    return json.loads(text, object_pairs_hook=_members, parse_constant=_no_constant)


def _members(pairs: list[tuple[str, object]]) -> JsonObject:
    members = JsonObject(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        members.duplicates = tuple(key for key in members if keys.count(key) > 1)
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
