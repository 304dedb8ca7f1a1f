"""The forms in which programs repeat a secret: as it is, escaped for JSON, URLs or Python, and in base64."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote

MIN_LENGTH = 6
"""Characters. Shorter texts occur in ordinary text."""
_MIN_LINE_LENGTH = 16
_JSON_LEVELS = 3
_NOT_ESCAPED_IN_URLS = ("/", "=", "/=", "!'()*", ";,/?:@&=+$!'()*#", "$&+=:@")
"""What programs leave as it is: Python, JavaScript's encodeURIComponent and encodeURI, and Go in paths."""
_ALSO_ESCAPED_IN_JSON = (("/", "\\/"), ("<>&", "\\u{:04x}"), ("<>&'+`", "\\u{:04X}"))
"""By PHP, Go and .NET."""
_BY_SOME = re.compile("[/<>&'+`\"]")
_BASE64_FOR_URLS = str.maketrans("+/", "-_")


def secret_forms(secret: str) -> frozenset[str]:
    """Return `secret` in all forms that have at least MIN_LENGTH characters.

    Lines of at least 16 characters count separately, because logs are read by line. If the secret is
    percent-encoded, as in a URL, the decoded text counts as well.
    """
    lines = [line for line in map(str.strip, secret.splitlines()) if len(line) >= _MIN_LINE_LENGTH]
    forms = {form for part in {secret, unquote(secret), *lines} for form in _forms(part)}
    return frozenset(form for each in forms for form in _in_json(each) if len(form) >= MIN_LENGTH)


def _forms(text: str) -> Iterator[str]:
    encoded = _to_bytes(text)
    yield text
    for shown in (repr('"' + text)[2:-1], ascii('"' + text)[2:-1], repr(b'"' + encoded)[3:-1]):
        yield shown
        yield shown.replace("\\'", "'")  # as part of a text that contains no double quotes
    for url in (*_url_forms(quote(encoded, safe="")), quote_plus(encoded)):
        yield url
        yield re.sub("%..", lambda escape: escape[0].lower(), url)
    yield from _base64_forms(encoded)


def _in_json(form: str) -> set[str]:
    """Return the form as it is, in JSON, and in JSON within JSON, as in the text of a tool's result."""
    plain, found = json.dumps(form)[1:-1], {form}
    if _BY_SOME.search(plain):
        found |= {plain, plain.replace('\\"', "\\u0022")}
        for characters, escape in _ALSO_ESCAPED_IN_JSON:
            found |= {
                _replaced(each, ((one, escape.format(ord(one))) for one in characters)) for each in found
            }
    latest = found if plain != form or len(found) > 1 else set()
    for _ in range(_JSON_LEVELS):
        whole = {json.dumps(each)[1:-1] for each in latest}
        readable = {json.dumps(each, ensure_ascii=False)[1:-1] for each in latest if not each.isascii()}
        latest = (whole | readable) - found
        found |= latest
    return found


def _url_forms(url: str) -> Iterator[str]:
    """Yield what programs make of a text in URLs, from that of one that escapes as much as possible."""
    yield url
    for kept in _NOT_ESCAPED_IN_URLS:
        yield _replaced(url, ((f"%{ord(one):02X}", one) for one in kept))


def _replaced(text: str, pairs: Iterable[tuple[str, str]]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _base64_forms(encoded: bytes) -> Iterator[str]:
    """Yield what base64 makes of the bytes at each alignment, without characters that depend on others."""
    for shift in range(3):
        first, last = -(-shift * 8 // 6), (shift + len(encoded)) * 8 // 6
        form = base64.b64encode(bytes(shift) + encoded).decode()[first:last]
        yield form
        yield form.translate(_BASE64_FOR_URLS)


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # as the environment's bytes were decoded
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
