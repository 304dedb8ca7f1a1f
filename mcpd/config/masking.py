"""Finds the secret parts of definitions and texts, and masks them for display and logs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from mcpd.config.variables import Substitution
from mcpd.model.text import shorten

MIN_SECRET_LENGTH = 6
"""Characters. Masking shorter values everywhere would hide ordinary words."""

MASK = "***"

PASSED_FIELDS = frozenset({"command", "args", "env", "url", "headers", "oauth"})
"""The fields that are passed to the server, and so may contain secrets."""

# Patterns are strings, because `re` compiles those with their first use: most daemons need few of them.
_INSIDE = (
    r"(?i)token|secret|passw|passphrase|credential|cookie|api_?key|access_?key|private_?key|authorization"
    r"|bearer"
)
_WORDS = frozenset({"key", "auth", "pat", "jwt", "pwd", "pass"})
_HARMLESS = frozenset(
    {"HOME", "USER", "LOGNAME", "PATH", "SHELL", "PWD", "LANG", "TERM", "TMPDIR", "HOSTNAME", "EDITOR", "TZ"}
)
SCHEME = re.compile(r"(?:Bearer|Basic|Token|Digest|ApiKey)\s+(?=\S)", re.I)
KNOWN_TOKENS = re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|AIza)[A-Za-z0-9_-]{8,}")
_REFERENCE = (
    r"(\$\{(?:(?:env:|secret:)?[A-Za-z_][A-Za-z0-9_]*|credential:[A-Za-z0-9_.-]+|(?:file|cmd):(?:(?!:-)[^{}])+))"
    r"(?::-([^{}]*))?\}"
)
"""Groups: the reference up to its name, and the default."""
_FETCHED = r"\$\{(?:secret|credential|file|cmd):[^{}]*\}"
# No repetition below can start again within what it has matched, so the cost is linear.
_USERINFO = r"(?<=://)([^/@\s:]*+):([^/@\s]++)@"
_USER_ALONE = r"(?i)(https?://)([^/@\s:${]{6,}+)@"
_PATH = r"(https?://[^/?#\s]++)(/[^?#\s]++)"
_COMMIT = r"[0-9a-f]{40}"
_RUN = r"[A-Za-z0-9]{20,}+"
_MIN_ENTROPY = 3.5
"""Bits per character. English words have about 2.5, the hexadecimal digits of a key 3.7."""
_NAMED = r"((?i:x-[a-z-]++|authorization)(?=:)|[A-Za-z_][A-Za-z0-9_.-]*+(?==|:\s))((?:=|:\s*+)(?=\S))"
"""At the start of the value of an option: `docker run -e NAME=VALUE`, `--header "NAME: VALUE"`."""
_INSIDE_TEXT = (
    r"(?<![\w./@~-])([A-Za-z_][\w-]{0,63}+)(\\*+[\"']?\s*+(?:=|:(?=[\s\"'\\]))\s*+\\*+[\"']?"
    r"(?:(?:Bearer|Basic|Token|Digest|ApiKey)\s++)?)((?<=[\"'])[^\"'\\]{6,}+|[^\s\"'\\,;&]{6,}+)"
)
"""Groups: a name, what is between, and its value, in a shell command, in JSON, or in a connection string."""
_QUERY = r"(?<=[?&])([^=?&#\s]++)=([^&#\s]++)"


def is_secret_name(name: str) -> bool:
    """Return whether variables, headers, keys or options of this name usually contain secrets."""
    name = name.replace("-", "_")
    if re.search(_INSIDE, name):
        return True
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
    return not _WORDS.isdisjoint(words)


def looks_random(text: str) -> bool:
    """Return whether a value contains a long random run of letters and digits."""
    return any(
        re.search(r"\d", run) is not None
        and re.search(r"[A-Za-z]", run) is not None
        and _entropy(run) > _MIN_ENTROPY
        for run in re.findall(_RUN, text)
    )


def _entropy(text: str) -> float:
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts)


def is_secret_segment(text: str) -> bool:
    """Return whether a segment of a URL's path looks like a secret: for some services, it is the only one."""
    return not re.search(_COMMIT, text) and (bool(KNOWN_TOKENS.search(text)) or looks_random(text))


def secret_values(definition: Mapping[str, object], taken: Iterable[Substitution]) -> frozenset[str]:
    """Return the values to mask for one *expanded* definition, of at least `MIN_SECRET_LENGTH` characters.

    These are all values of variables (except session variables such as HOME), all literals in `PASSED_FIELDS`
    with a secret-looking name (also without `Bearer`), and passwords in URLs. References that are not
    fetched yet stay readable, so that messages can name them.
    """
    found = {item.value for item in taken if not _is_harmless(item.variable)}
    for name, text in _named_strings({key: definition[key] for key in PASSED_FIELDS & definition.keys()}):
        if is_secret_name(name):
            found.update(_literal_parts(text))
        for password in re.findall(_USERINFO, text):
            found.update(_literal_parts(password[1]))
        found.update(token for _, token in re.findall(_USER_ALONE, text))
        for _, path in re.findall(_PATH, text):
            found.update(filter(is_secret_segment, path.split("/")))
        for inner, _, value in re.findall(_INSIDE_TEXT, text):
            if is_secret_name(inner):
                found.update(_literal_parts(value))
        if "://" in text:
            found.update(value for key, value in re.findall(_QUERY, text) if is_secret_name(key))
        found.update(KNOWN_TOKENS.findall(text))
    values = (text.strip() for text in found)
    return frozenset(
        one for one in values if len(one) >= MIN_SECRET_LENGTH and not re.fullmatch(_FETCHED, one)
    )


def _is_harmless(variable: str) -> bool:
    return variable in _HARMLESS or variable.startswith(("XDG_", "LC_"))


def mask_definition(definition: Mapping[str, object]) -> dict[str, object]:
    """Return a copy for display: secrets become `***`, references such as `${TOKEN}` stay readable."""
    return {key: _mask_value(key, value) for key, value in definition.items()}


_MAX_QUOTED = 1000
"""Characters of a line that are looked at, of which 120 are shown: a secret before the cut is still found."""
_SEPARATOR = re.compile(r"[\"',:=\s]+(?=\S)")


def quote_line(line: str) -> str:
    """Shorten a line of a file for an error message. Everything after a secret-looking name is masked."""
    line = line.lstrip()[:_MAX_QUOTED]
    for word in re.finditer(r"[A-Za-z][A-Za-z0-9_-]*", line):
        rest = _SEPARATOR.match(line, word.end())
        if rest and is_secret_name(word[0]):
            return shorten(line[: rest.end()].strip() + MASK)
    return shorten(KNOWN_TOKENS.sub(MASK, re.sub(_USERINFO, rf"\1:{MASK}@", line)).strip())


_IN_STRING = r'[^"\\]*+(?:\\.[^"\\]*+)*'
_MEMBER = rf'(?s)(?<!\\)"({_IN_STRING})"(\s*+:\s*+)"({_IN_STRING})"'
_MEMBER_IN_TEXT = r'\\"([^"\\]{1,64}+)\\"(\s*+:\s*+)\\"([^"\\]++)\\"'
"""The same in JSON that is a string inside other JSON, as many tools return it."""
_USERINFO_IN_TEXT = r'(?<=://)([^/@\s:"\\]*+):([^/@\s"\\]++)@'
_QUERY_IN_TEXT = r'(?<=[?&])([^=?&#\s"\\]++)=([^&#\s"\\]++)'
"""In free text, a URL ends at a quotation mark at the latest."""
_AUTHORIZATION = r"\b(Bearer|Basic)\s++[A-Za-z0-9._~+/=-]{6,}+"
_MAX_NAME = 64
_PROTOCOL_OWN = frozenset({"progressToken", "nextCursor", "cursor"})


def scrub(text: str) -> str:
    """Mask everything that looks like a secret: known kinds of tokens, passwords in URLs, `Bearer …`.

    For texts from servers and tools, whose secrets mcpd does not know by value.
    """
    text = re.sub(_AUTHORIZATION, rf"\1 {MASK}", KNOWN_TOKENS.sub(MASK, text))
    text = re.sub(_USERINFO_IN_TEXT, rf"\1:{MASK}@", text)
    return re.sub(_QUERY_IN_TEXT, lambda m: f"{m[1]}={MASK}" if is_secret_name(m[1]) else m[0], text)


def scrub_json(text: str) -> str:
    """Like `scrub`, and also mask string members with secret-looking names."""

    def member(found: re.Match[str]) -> str:
        name, _, value = found.groups()
        short = len(value) < MIN_SECRET_LENGTH or len(name) > _MAX_NAME
        if short or name in _PROTOCOL_OWN or not is_secret_name(name):
            return found[0]
        start = found.start(3) - found.start()
        return found[0][:start] + MASK + found[0][start + len(value) :]

    return re.sub(_MEMBER_IN_TEXT, member, re.sub(_MEMBER, member, scrub(text)))


def _mask_value(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _mask_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        shown = []
        option = ""
        for item in value:
            shown.append(_mask_value(option or name, item))
            option = item.lstrip("-") if isinstance(item, str) and _is_option(item) else ""
        return shown
    if isinstance(value, str):
        return _mask_text(name, value)
    return value


def _mask_text(name: str, text: str) -> str:
    if _is_option(text) and "=" in text:
        option, _, rest = text.partition("=")
        return f"{option}={_mask_text(option.lstrip('-'), rest)}"
    if is_secret_name(name) and not _is_option(text):
        scheme = SCHEME.match(text)
        rest = text[scheme.end() :] if scheme else text
        return (scheme[0] if scheme else "") + _mask_around_references(rest)
    if (named := re.match(_NAMED, text)) and is_secret_name(named[1]):
        return named[0] + _mask_text(named[1], text[named.end() :])
    text = re.sub(_USERINFO, lambda m: f"{m[1]}:{_mask_around_references(m[2])}@", text)
    text = re.sub(_USER_ALONE, rf"\1{MASK}@", text)
    text = re.sub(_PATH, lambda m: m[1] + "/".join(map(_mask_segment, m[2].split("/"))), text)
    text = re.sub(
        _INSIDE_TEXT,
        lambda m: f"{m[1]}{m[2]}{_mask_around_references(m[3])}" if is_secret_name(m[1]) else m[0],
        text,
    )
    if "://" in text:
        text = re.sub(
            _QUERY, lambda m: f"{m[1]}={MASK}" if is_secret_name(m[1]) and "${" not in m[2] else m[0], text
        )
    return KNOWN_TOKENS.sub(MASK, text)


def _mask_segment(text: str) -> str:
    return MASK if is_secret_segment(text) else text


def _mask_around_references(text: str) -> str:
    """Mask a secret text except for its references."""
    shown, here = "", 0
    for found in re.finditer(_REFERENCE, text):
        default = "" if found[2] is None else f":-{found[2] and MASK}"
        shown += _blank_or_mask(text[here : found.start()]) + f"{found[1]}{default}}}"
        here = found.end()
    return shown + _blank_or_mask(text[here:])


def _blank_or_mask(text: str) -> str:
    return MASK if text.strip() else text


def _literal_parts(text: str) -> list[str]:
    """Return a secret text with and without `Bearer`, or its parts around unresolved references."""
    value = SCHEME.sub("", text, count=1)
    return re.split(_FETCHED, value) if re.search(_FETCHED, value) else [text, value]


def _named_strings(value: object, name: str = "") -> Iterable[tuple[str, str]]:
    """Yield every string with its name: its key, or the option before it in a list."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named_strings(inner, str(key))
    elif isinstance(value, list):
        option = ""
        for item in value:
            yield from _named_strings(item, option or name)
            option = item.lstrip("-") if isinstance(item, str) and _is_option(item) else ""
    elif isinstance(value, str):
        if _is_option(value):
            option, equals, rest = value.partition("=")
            if equals:
                yield from _named_strings(rest, option.lstrip("-"))
        else:
            yield name, value
            if named := re.match(_NAMED, value):
                yield named[1], value[named.end() :]


def _is_option(text: str) -> bool:
    return text.startswith("-") and len(text) > 1
