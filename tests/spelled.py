"""How programs spell a secret that they repeat. Written independently of the code that masks them."""

from __future__ import annotations

import base64
import html
import html.entities
import json
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, quote_plus, unquote

_NAMED = {
    code: f"&{name.removesuffix(';')};"
    for name, value in html.entities.html5.items()
    if len(value) == 1 and (code := ord(value)) < 128 and name.isascii()
}
_NAMED |= {code: f"&{name};" for code, name in html.entities.codepoint2name.items()}


def _every_second(text: str) -> str:
    return "".join(each.upper() if n % 2 else each for n, each in enumerate(text))


SHOWN: Mapping[str, Callable[[str], str]] = {
    "plain": str,
    "repr": repr,
    "repr with both quotes": lambda text: repr(text + "'\""),
    "ascii": ascii,
    "repr of bytes": lambda text: repr(text.encode()),
    "JSON": json.dumps,
    "JSON as UTF-8": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "JSON of PHP": lambda text: json.dumps(text).replace("/", "\\/"),
    "URL": quote,
    "URL without slashes": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "URL in lower case": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "percent-decoded": unquote,
    "HTML": html.escape,
    "HTML without quotes": lambda text: html.escape(text, quote=False),
    "HTML of Go": lambda text: html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal in upper case": lambda text: text.encode().hex().upper(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "Basic authentication": lambda text: base64.b64encode(f"ann:{text}".encode()).decode(),
    "Basic authentication, decoded": lambda text: base64.b64encode(f"anna:{unquote(text)}".encode()).decode(),
    "base64 without padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    "base64 of base64": lambda text: base64.b64encode(base64.b64encode(f"ann:{text}".encode())).decode(),
    "base64 of JSON": lambda text: base64.b64encode(json.dumps({"a": text}).encode()).decode(),
    "base64 of hexadecimal digits": lambda text: base64.b64encode(text.encode().hex().encode()).decode(),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
    "base64 with line breaks": lambda text: base64.encodebytes(text.encode() * 3).decode(),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "base32 in lower case": lambda text: base64.b32encode(f"a {text}".encode()).decode().lower().rstrip("="),
    "hexadecimal in both cases": lambda text: _every_second(text.encode().hex()),
    "hexadecimal inside other digits": lambda text: f"f00{text.encode().hex()}",
    "hexadecimal with spaces": lambda text: text.encode().hex(" "),
    "bytes in hexadecimal": lambda text: ",".join(map(hex, text.encode())),
    "bytes in decimal": lambda text: str(list(text.encode())),
    "UTF-16": lambda text: text.encode("utf-16").decode("utf-8", "replace"),
    "UTF-16 in the other order": lambda text: text.encode("utf-16-be").decode("utf-8", "replace"),
    "UTF-32": lambda text: text.encode("utf-32").decode("utf-8", "replace"),
    "Latin-1": lambda text: text.encode("latin-1", "replace").decode("utf-8", "replace"),
    "each character as in a URL": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "the same in both cases, twice": lambda text: "".join(f"%25{byte:02X}" for byte in text.encode()),
    "JavaScript's escape": lambda text: "".join(f"%u{ord(each):04x}" for each in text),
    "decimal entities": lambda text: "".join(f"&#{ord(each)};" for each in text),
    "hexadecimal entities": lambda text: "".join(f"&#x{ord(each):X};" for each in text),
    "named entities": lambda text: "".join(_NAMED.get(ord(each), each) for each in text),
    "entities in a URL": lambda text: quote("".join(f"&#{ord(each)};" for each in text), safe=""),
    "JSON of each character": lambda text: "".join(f"\\u{ord(each):04X}" for each in text),
    "hexadecimal escapes": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "octal escapes": lambda text: "".join(f"\\{byte:03o}" for byte in text.encode()),
    "colors": lambda text: "".join(f"\x1b[1;{n % 8 + 30}m{each}\x1b[0m" for n, each in enumerate(text)),
    "colors in JSON": lambda text: json.dumps("\x1b[31m".join(text)),
    "titles of a terminal": lambda text: "\x1b]0;title\x07".join(text),
    "control characters": lambda text: "".join(f"{each}{chr(1 + n % 31)}" for n, each in enumerate(text)),
    "invisible characters": lambda text: "\u200b\ufeff\u00ad".join(text),
    "one line for each character": "\r\n".join,
    "inside base64": lambda text: base64.b64encode(f"annab:{text} and more".encode()).decode(),
}
"""Name → function that shows a text in this spelling."""
EDGE = 12
"""Characters at each end of a spelling that may belong to quotation marks or other text."""


def every_spelling(text: str) -> str:
    """Return a line with the text in every spelling that has no line breaks: logs are read by line."""
    return " ".join(_on_one_line(text))


def _on_one_line(text: str) -> list[str]:
    return [spelt for show in SHOWN.values() if "\n" not in (spelt := show(text))]


def is_shown_in(text: str, secret: str) -> bool:
    """Return whether `text` contains the secret, or the middle of it, in any spelling on one line."""
    spelt = _on_one_line(secret)
    return any(each[EDGE:-EDGE] in text for each in spelt if len(each) > 3 * EDGE) or secret in text
