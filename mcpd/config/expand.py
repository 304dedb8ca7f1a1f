"""`${VAR}` in strings: replaced from the environment, remembering what came from where."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from mcpd.config.places import at
from mcpd.model.errors import Problem, shorten

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LITERAL = "write $${ if a literal ${ is meant"


@attrs.frozen
class Taken:
    """One value that came from the environment."""

    place: str
    variable: str
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
    `$${` is a literal `${`. What was inserted is not looked at again.
    """
    work = _Expansion(environ)
    return Expanded(work.walk(value, place), tuple(work.taken), tuple(work.problems))


class _Expansion:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.taken: list[Taken] = []
        self.problems: list[Problem] = []

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
        name = body.removeprefix("env:")
        if not _NAME.fullmatch(name):
            message = f"${{{shorten(body, 40)}}} is not a reference that mcpd knows"
            fix = f"put the value into an environment variable and write ${{VAR}}; {_LITERAL}"
            self.problems.append(Problem(place, message, fix))
            return ""
        value = self.environ.get(name)
        if value is None and not dash:
            fix = f"set {name} in the environment of mcpd, or give a default: ${{{name}:-…}}"
            self.problems.append(Problem(place, f"the environment variable {name} is not set", fix))
            return ""
        if dash and not value:
            return self.text(default, place)
        assert value is not None
        self.taken.append(Taken(place, name, value))
        return value


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
