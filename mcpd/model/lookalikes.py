"""One spelling for names and URIs that look alike, or lead to the same thing."""

from __future__ import annotations

import functools
import re
import unicodedata
from urllib.parse import unquote

_SAME_SHAPE = {
    "a": "0430 03b1 0251",
    "b": "0432 03b2 044c",
    "c": "0441 03f2",
    "d": "0501",
    "e": "0435 0451 03b5 0454",
    "g": "0261 0581",
    "h": "04bb 043d 0570",
    "k": "043a 03ba",
    "l": "i 1 | 0456 0457 03b9 0269 04cf 05d5 0627",
    "j": "0458 03f3",
    "m": "043c",
    "n": "0578 03b7",
    "o": "0 043e 03bf 03c3 0585 3007 06f0 0966",
    "p": "0440 03c1",
    "q": "051b",
    "r": "0433 0433",
    "s": "0455",
    "t": "0442 03c4",
    "u": "03c5 057d",
    "v": "03bd 0475",
    "w": "051d 03c9",
    "x": "0445 03c7",
    "y": "0443 03b3",
    "_": "- . 00b7 2010 2011 2012 2013 2014 2212",
}
"""A character → those that look like it: themselves, or their code points in hex."""
_FOLDED = {
    ord(each) if len(each) == 1 else int(each, 16): character
    for character, others in _SAME_SHAPE.items()
    for each in others.split()
}
_LATIN_VARIANT = re.compile(r"LATIN (?:SMALL |CAPITAL )?LETTER (?:[A-Z]{2,} )*([A-Z])(?: .*)?")


_MAX_CACHED = 256
"""Characters: clients choose the names, and the cache keeps thousands."""


def fold(name: str) -> str:
    """Return the same text for names that a person, or a tolerant server, may confuse.

    Case, accents, invisible characters, spaces, and letters of other alphabets that look alike do not count.
    """
    if name.isascii() and name.isprintable():
        return "_".join(name.lower().translate(_FOLDED).split())
    return _fold(name) if len(name) <= _MAX_CACHED else _fold.__wrapped__(name)


@functools.lru_cache(maxsize=4096)
def _fold(name: str) -> str:
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    visible = "".join(
        each if each.isascii() else _latin(each)
        for each in decomposed
        if each.isprintable() and unicodedata.category(each)[0] not in "MC"
    )
    return "_".join(visible.translate(_FOLDED).split())


@functools.lru_cache(maxsize=4096)
def _latin(character: str) -> str:
    """Return the plain letter of a variant, such as a small capital or one with a stroke."""
    found = _LATIN_VARIANT.fullmatch(unicodedata.name(character, ""))
    return found[1].lower() if found else character


def fold_uri(uri: str) -> str:
    """Return one spelling for URIs that lead to the same resource: without escapes, `.`, `..` and `//`."""
    for _ in range(3):  # servers may decode twice
        if (decoded := unquote(uri)) == uri:
            break
        uri = decoded
    scheme, found, rest = uri.replace("\\", "/").partition("://")
    if not found:
        return uri
    authority, slash, path = rest.partition("/")
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return f"{scheme.lower()}://{authority.lower()}{slash}{'/'.join(parts)}"
