"""How programs spell a secret that they repeat. Written independently of the code that masks them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, quote_plus, unquote


def _escaped(text: str, characters: str) -> str:
    return "".join(f"\\u{ord(each):04X}" if each in characters else each for each in text)


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
    "JSON of Go": lambda text: (
        _escaped(json.dumps(text), "<>&").replace("003C", "003c").replace("003E", "003e")
    ),
    "JSON of .NET": lambda text: _escaped(json.dumps(text)[1:-1].replace('\\"', '"'), "\"<>&'+`"),
    "URL": quote,
    "URL in Go": lambda text: quote(text, safe="$&+=:@"),
    "encodeURI": lambda text: quote(text, safe=";,/?:@&=+$!'()*#"),
    "URL without slashes": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "URL in lower case": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "percent-decoded": unquote,
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "Basic authentication": lambda text: base64.b64encode(f"ann:{text}".encode()).decode(),
    "Basic authentication, decoded": lambda text: base64.b64encode(f"anna:{unquote(text)}".encode()).decode(),
    "base64 without padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    "inside base64": lambda text: base64.b64encode(f"annab:{text} and more".encode()).decode(),
}
"""Name → function that shows a text in this spelling."""
EDGE = 12
"""Characters at each end of a spelling that may belong to quotation marks or other text."""


def every_spelling(text: str) -> str:
    """Return a line with the text in every spelling that has no line breaks: logs are read by line.

    Not in JSON in JSON: a message that contains the line has more levels of JSON.
    """
    nested = SHOWN["JSON in JSON"](text)
    return " ".join(each for each in _on_one_line(text) if each != nested)


def _on_one_line(text: str) -> list[str]:
    return [spelt for show in SHOWN.values() if "\n" not in (spelt := show(text))]


def is_shown_in(text: str, secret: str) -> bool:
    """Return whether `text` contains the secret, or the middle of it, in any spelling on one line."""
    spelt = _on_one_line(secret)
    return any(each[EDGE:-EDGE] in text for each in spelt if len(each) > 3 * EDGE) or secret in text
