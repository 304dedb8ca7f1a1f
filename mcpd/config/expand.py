"""`${VAR}` and `${secret:NAME}` in strings: replaced, remembering what came from where."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from mcpd.config.places import at
from mcpd.model.errors import BadSpec, Problem, shorten

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LITERAL = "write $${ if a literal ${ is meant"


@attrs.frozen
class Taken:
    """One value that came from the environment, or from the user's secrets."""

    place: str
    variable: str
    """The variable's name, or `secret:NAME`."""
    value: str = attrs.field(repr=False)


@attrs.frozen
class Expanded:
    """A value with every reference replaced, what was taken for it, and what could not be."""

    value: object
    taken: tuple[Taken, ...]
    problems: tuple[Problem, ...]


def expand(value: object, environ: Mapping[str, str], place: str) -> Expanded:
    """Replace the references in every string inside `value`; keys stay as they are.

    `${VAR}` and `${env:VAR}`: the variable's value, a problem when it is not set. With `:-default`
    the default stands in when the variable is not set or empty; the default may hold references too.
    `${secret:NAME}`: likewise, from the user's secrets, which are read when the first of them is met.
    `$${` is a literal `${`. What was inserted is not looked at again.
    """
    work = _Expansion(environ)
    return Expanded(work.walk(value, place), tuple(work.taken), tuple(work.problems))


class _Expansion:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.taken: list[Taken] = []
        self.problems: list[Problem] = []
        self._secrets: Mapping[str, str] | None = None

    def walk(self, value: object, place: str) -> object:
        if isinstance(value, str):
            return self.text(value, place) if "${" in value else value
        if isinstance(value, Mapping):
            return {key: self.walk(inner, at(place, str(key))) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.walk(inner, at(place, index)) for index, inner in enumerate(value)]
        return value

    def text(self, text: str, place: str) -> str:
        pieces: list[str] = []
        here = 0
        while (start := text.find("${", here)) >= 0:
            if start > here and text[start - 1] == "$":
                pieces.append(text[here : start - 1] + "${")
                here = start + 2
                continue
            end = _closing(text, start + 2)
            if end < 0:
                self.problems.append(Problem(place, "a ${ is never closed by }", _LITERAL))
                break
            pieces += text[here:start], self.reference(text[start + 2 : end], place)
            here = end + 1
        return "".join(pieces) + text[here:]

    def reference(self, inside: str, place: str) -> str:
        body, dash, default = inside.partition(":-")
        secret = body.startswith("secret:")
        name = body.removeprefix("secret:" if secret else "env:")
        if not _NAME.fullmatch(name):
            message = f"${{{shorten(body, 40)}}} is not a reference that mcpd knows"
            fix = f"put the value into an environment variable and write ${{VAR}}; {_LITERAL}"
            self.problems.append(Problem(place, message, fix))
            return ""
        value = (self.secrets() if secret else self.environ).get(name)
        if value is None and not dash:
            self.problems.append(_missing(place, name, secret=secret))
            return ""
        if dash and not value:
            return self.text(default, place)
        assert value is not None
        self.taken.append(Taken(place, body if secret else name, value))
        return value

    def secrets(self) -> Mapping[str, str]:
        if self._secrets is None:
            from mcpd.config.secrets import read_secrets  # most configurations have none

            try:
                self._secrets = read_secrets(self.environ)
            except BadSpec as error:
                self._secrets = {}
                self.problems += error.problems
        return self._secrets


def _missing(place: str, name: str, *, secret: bool) -> Problem:
    if secret:
        message, fix = f"there is no secret {name}", "store it in secrets.json, beside the configuration"
    else:
        message = f"the environment variable {name} is not set"
        fix = f"set {name} in the environment of mcpd, or give a default: ${{{name}:-…}}"
    return Problem(place, message, fix)


def _closing(text: str, start: int) -> int:
    """Where the `}` is that closes a reference; references in its default are stepped over. -1: nowhere."""
    depth, here = 1, start
    while here < len(text):
        if text.startswith("${", here):
            depth += 1
            here += 1
        elif text[here] == "}":
            depth -= 1
            if depth == 0:
                return here
        here += 1
    return -1
