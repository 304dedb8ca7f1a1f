"""The index that ranks tools by how well they fit a few words: SQLite's full-text index, in memory (BM25).

An index exists only where somebody searches. It is built and searched in steps, and reads at most some
kilobytes of each tool and of a query, whatever servers and clients send.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from mcpd.model.steps import Steps
from mcpd.wire import message as wire

if TYPE_CHECKING:
    import sqlite3

_MAX_DESCRIPTION, _MAX_ARGUMENTS, _MAX_SCHEMA = 2000, 50, 256 * 1024
"""Characters, arguments, and bytes of a schema that are read of a tool."""
_MAX_QUERY, _MAX_TERMS = 4000, 24
"""Characters and words that are read of a query."""
_PORTION = 20
"""Tools in one step, each of which takes about 0.1 ms."""
_RANK = "bm25(4.0, 2.5, 1.2, 0.5)"
"""The weights of the columns: name, server, description, arguments."""
_SURE = 0.4
"""The part of a query's words, weighted by how rare they are, that a tool must contain to fit."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+|\d+")
_COMMON_WORDS = """
a about all an and any are as at be by can current do does for from get give have how i in into is it its me
my need new of on one or our please should show so some tell that the their them then there these this to tool
tools up use using want was we what when where which who why will with would you your
"""
_COMMON = frozenset(_COMMON_WORDS.split())
"""Words that say nothing about a tool."""


def words(text: str) -> list[str]:
    """Split a text and the names in it: `getFile_contents` → get, file, contents."""
    return [word.lower() for word in _WORD.findall(text)]


class ToolIndex:
    """The tools of one list, by their positions in it."""

    def __init__(self, database: sqlite3.Connection, size: int) -> None:
        self._database = database
        self._size = size

    def search(self, query: str) -> Steps[tuple[Sequence[int], bool]]:
        """Return the positions of all tools that contain words of the query, the best first, and whether the
        first one fits, so that it is worth a try."""
        found = dict.fromkeys(words(query[:_MAX_QUERY]))
        terms = [word for word in found if word not in _COMMON][:_MAX_TERMS] or list(found)[:_MAX_TERMS]
        if not terms:
            return (), False
        matching = " OR ".join(f'"{term}"' for term in terms)
        ranked = self._database.execute(
            "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY rank, rowid", [matching]
        )
        positions = [row for (row,) in ranked]
        yield
        return positions, bool(positions) and self._share(terms, positions[0]) >= _SURE

    def _share(self, terms: Sequence[str], position: int) -> float:
        """Return which part of the terms is in one tool, weighted by how rare they are."""
        total = contained = 0.0
        for term in terms:
            ((count,),) = self._database.execute(
                "SELECT count(*) FROM tools WHERE tools MATCH ?", [f'"{term}"']
            )
            weight = math.log((self._size + 1) / (count + 0.5))
            total += weight
            match = f'"{term}"', position
            if self._database.execute(
                "SELECT 1 FROM tools WHERE tools MATCH ? AND rowid = ?", match
            ).fetchone():
                contained += weight
        return contained / total if total else 0.0


def build_tool_index(entries: Iterable[bytes], servers: Iterable[str]) -> Steps[ToolIndex]:
    """Index the entries of a list of tools, each with the name of its server."""
    import sqlite3  # imported only when somebody searches, to keep the daemon small

    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute(
        "CREATE VIRTUAL TABLE tools USING "
        "fts5(name, server, description, arguments, content='', tokenize='porter unicode61')"
    )
    database.execute("INSERT INTO tools (tools, rank) VALUES ('rank', ?)", [_RANK])
    size = 0
    for entry, server in zip(entries, servers, strict=True):
        columns = (" ".join(words(text)) for text in (*_texts(entry, server),))
        database.execute(
            "INSERT INTO tools (rowid, name, server, description, arguments) VALUES (?, ?, ?, ?, ?)",
            (size, *columns),
        )
        size += 1
        if not size % _PORTION:
            yield
    return ToolIndex(database, size)


def _texts(entry: bytes, server: str) -> tuple[str, str, str, str]:
    members = wire.members(entry)
    description = " ".join(
        wire.string_or(members, each)[:_MAX_DESCRIPTION] for each in ("title", "description")
    )
    name = wire.string_or(members, "name")[:_MAX_DESCRIPTION]
    return (
        name.removeprefix(f"{server}__"),
        server,
        description.replace(f"[{server}]", "", 1),
        _arguments(members),
    )


def _arguments(members: Mapping[str, Raw]) -> str:
    schema = members.get("inputSchema", Raw(b"{}"))
    if len(schema) > _MAX_SCHEMA:
        return ""
    properties = msgspec.json.decode(schema).get("properties")
    if not isinstance(properties, dict):
        return ""
    texts = []
    for name, shape in list(properties.items())[:_MAX_ARGUMENTS]:
        described = shape.get("description") if isinstance(shape, dict) else None
        texts.append(f"{name[:100]} {described[:200] if isinstance(described, str) else ''}")
    return " ".join(texts)
