"""JSON with comments and trailing commas; everything else is strict.

Comments and trailing commas are replaced by blanks before the standard parser runs, so the line and
column in its errors are those of the file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from io import StringIO
from typing import NoReturn


class DocumentSyntaxError(ValueError):
    """A syntax error in a JSON, TOML or YAML document. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column

    @classmethod
    def at_offset(cls, message: str, text: str, offset: int) -> DocumentSyntaxError:
        start = text.rfind("\n", 0, offset) + 1
        return cls(message, text.count("\n", 0, offset) + 1, offset - start + 1)


class JsonObject(dict[str, object]):
    """A JSON object that knows which of its keys were defined more than once."""

    duplicates: tuple[str, ...] = ()


_STRING = r'"(?:\\.|[^"\\\r\n])*"?'
_COMMENTS = re.compile(rf"{_STRING}|(?P<line>//[^\r\n]*)|(?P<open>/\*)")
_TOKENS = re.compile(rf"{_STRING}|\S")
_INK = re.compile(r"\S+")


def blank_comments(text: str) -> str:
    """Replace comments by blanks, so that every other character keeps its position.

    Raises DocumentSyntaxError for an unclosed comment.
    """
    return text if _is_standard(text) else _blank_comments(text)


def _blank_comments(text: str) -> str:
    blanked = StringIO()  # a list of a million pieces would take more memory, and keep some of it
    kept = position = 0
    while found := _COMMENTS.search(text, position):
        start, position = found.span()
        if found["open"]:
            # A pattern for the whole comment would take a hundred times its memory.
            end = text.find("*/", position)
            if end < 0:
                raise DocumentSyntaxError.at_offset("this comment is never closed by */", text, start)
            position = end + 2
        elif not found["line"]:
            continue
        blanked.write(text[kept:start])
        blanked.write(_INK.sub(lambda ink: " " * len(ink[0]), text[start:position]))
        kept = position
    blanked.write(text[kept:])
    return blanked.getvalue()


def to_standard_json(text: str) -> str:
    """Replace comments and trailing commas by blanks. Raises DocumentSyntaxError."""
    return text if _is_standard(text) else _to_standard_json(text)


def _to_standard_json(text: str) -> str:
    bare = _blank_comments(text)
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
    """Return whether the text is standard JSON. Cached: editors' files can have 10 MB."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def parse_jsonc(text: str) -> object:
    """Parse JSONC. Objects are `JsonObject`; an empty text is an empty object. Raises DocumentSyntaxError."""
    try:
        return _loads(text)  # most files have no comments, and some are long
    except (ValueError, RecursionError):
        pass  # not standard JSON; errors are reported below
    bare = _to_standard_json(text)
    if not bare.strip():
        return JsonObject()
    try:
        return _loads(bare)
    except json.JSONDecodeError as error:
        raise DocumentSyntaxError(error.msg, error.lineno, error.colno) from None
    except RecursionError:
        raise DocumentSyntaxError("nested too deeply", 1, 1) from None
    except ValueError as error:
        raise DocumentSyntaxError(str(error), 1, 1) from None


def _loads(text: str) -> object:
    return json.loads(text, object_pairs_hook=_members, parse_constant=_no_constant)


def _members(pairs: list[tuple[str, object]]) -> JsonObject:
    members = JsonObject(pairs)
    if len(members) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        members.duplicates = tuple(key for key, count in counts.items() if count > 1)
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
