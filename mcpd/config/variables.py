"""`${VAR}`, `${secret:NAME}` and their like in strings: replaced, remembering what came from where."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import attrs

from mcpd.config.json_path import join_path
from mcpd.model.errors import Problem
from mcpd.model.server_spec import FetchedSecrets, SecretKind, SecretReference, UnavailableSecret
from mcpd.model.text import shorten

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_SECRET_KINDS: tuple[SecretKind, ...] = ("secret", "credential", "file", "cmd")
_ESCAPE_HINT = "write $${ if a literal ${ is meant"


@attrs.frozen
class Substitution:
    """One value that came from the environment, or was fetched."""

    path: str
    variable: str
    """The variable's name, or `secret:NAME` and the like."""
    value: str = attrs.field(repr=False)


@attrs.frozen
class ExpansionResult:
    """A value with every reference replaced, what was taken for it, and what could not be."""

    value: object
    substitutions: tuple[Substitution, ...]
    problems: tuple[Problem, ...]
    unresolved: tuple[tuple[str, SecretReference], ...] = ()
    """What is not among the known: its place, and what to fetch. Its text stays in the value."""


def expand(
    value: object,
    environ: Mapping[str, str],
    path: str,
    *,
    base_dir: Path | None = None,
    fetched: FetchedSecrets | None = None,
) -> ExpansionResult:
    """Replace the references in every string inside `value`; keys stay as they are.

    `${VAR}` and `${env:VAR}`: the variable's value, a problem when it is not set. With `:-default`
    the default stands in when the variable is not set or empty; the default may hold references too.
    `${secret:NAME}`, `${credential:NAME}`, `${file:PATH}` and `${cmd:COMMAND}` are taken from `known`; with
    `:-default` (not for a command) the default stands in for what is missing or empty. Nothing is read or
    run here. Variables inside a path or a word of a command are replaced; a path is meant from `base_dir`.
    `$${` is a literal `${`. What was inserted is not looked at again.
    """
    work = _Expansion(environ, base_dir or Path("/"), fetched or {})
    return ExpansionResult(
        work.expand_value(value, path),
        tuple(work.substitutions),
        tuple(work.problems),
        tuple(dict.fromkeys(work.unresolved)),
    )


class _Expansion:
    def __init__(self, environ: Mapping[str, str], base_dir: Path, fetched: FetchedSecrets) -> None:
        self.environ = environ
        self.base_dir = base_dir
        self.fetched = fetched
        self.substitutions: list[Substitution] = []
        self.problems: list[Problem] = []
        self.unresolved: list[tuple[str, SecretReference]] = []

    def expand_value(self, value: object, place: str) -> object:
        if isinstance(value, str):
            return self.expand_text(value, place) if "${" in value else value
        if isinstance(value, Mapping):
            return {key: self.expand_value(inner, join_path(place, str(key))) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.expand_value(inner, join_path(place, index)) for index, inner in enumerate(value)]
        return value

    def expand_text(self, text: str, place: str) -> str:
        pieces: list[str] = []
        here = 0
        while (start := text.find("${", here)) >= 0:
            if start > here and text[start - 1] == "$":
                pieces.append(text[here : start - 1] + "${")
                here = start + 2
                continue
            end = _find_closing_brace(text, start + 2)
            if end < 0:
                self.problems.append(Problem(place, "a ${ is never closed by }", _ESCAPE_HINT))
                break
            pieces += text[here:start], self.expand_reference(text[start + 2 : end], place)
            here = end + 1
        return "".join(pieces) + text[here:]

    def expand_reference(self, inside: str, place: str) -> str:
        kind = next((kind for kind in _SECRET_KINDS if inside.startswith(f"{kind}:")), None)
        if kind is not None:
            return self.expand_secret(kind, inside.removeprefix(f"{kind}:"), place)
        body, dash, default = inside.partition(":-")
        name = body.removeprefix("env:")
        if not _NAME.fullmatch(name):
            message = f"${{{shorten(body, 40)}}} is not a reference that mcpd knows"
            fix = f"put the value into an environment variable and write ${{VAR}}; {_ESCAPE_HINT}"
            self.problems.append(Problem(place, message, fix))
            return ""
        value = self.environ.get(name)
        if value is None and not dash:
            message = f"the environment variable {name} is not set"
            fix = f"set {name} in the environment of mcpd, or give a default: ${{{name}:-…}}"
            self.problems.append(Problem(place, message, fix))
            return ""
        if dash and not value:
            return self.expand_text(default, place)
        assert value is not None
        self.substitutions.append(Substitution(place, name, value))
        return value

    def expand_secret(self, kind: SecretKind, inside: str, place: str) -> str:
        body, dash, default = (inside, "", "") if kind == "cmd" else inside.partition(":-")
        try:
            words = self.parse_arguments(kind, body, place)
        except ValueError as error:
            fix = "write ${secret:NAME}, ${credential:NAME}, ${file:PATH} or ${cmd:COMMAND ARGUMENTS}"
            self.problems.append(Problem(place, f"${{{kind}:…}} {error}", fix))
            return ""
        reference = SecretReference(kind, words)
        found = self.fetched.get(reference)
        if found is None:
            self.unresolved.append((place, reference))
            rest = dash + self.expand_text(default, place) if dash else ""
            return f"${{{kind}:{shlex.join(words) if kind == 'cmd' else words[0]}{rest}}}"
        if dash and (found == "" or (isinstance(found, UnavailableSecret) and found.missing)):
            return self.expand_text(default, place)
        if isinstance(found, UnavailableSecret):
            self.problems.append(Problem(place, found.message, found.fix))
            return ""
        self.substitutions.append(Substitution(place, f"{kind}:{words[0]}", found))
        return found

    def parse_arguments(self, kind: SecretKind, body: str, place: str) -> tuple[str, ...]:
        """Raises ValueError, which says what is wrong with it."""
        if kind == "cmd":
            try:
                words = shlex.split(body)
            except ValueError as error:
                raise ValueError(f"cannot be split into words: {str(error).lower()}") from None
            words = [self.expand_text(word, place) if "${" in word else word for word in words]
            if not words or not words[0]:
                raise ValueError("names no command")
            return tuple(words)
        if kind == "file":
            path = self.expand_text(body, place) if "${" in body else body
            if not path or "\0" in path:
                raise ValueError("names no file")
            if path == "~" or path.startswith("~/"):
                path = (self.environ.get("HOME") or os.path.expanduser("~")) + path[1:]
            return (os.path.normpath(self.base_dir / path),)
        if not (_NAME if kind == "secret" else _CREDENTIAL).fullmatch(body):
            raise ValueError(f"names no {kind}: {shorten(body, 40)!r}")
        return (body,)


def misplaced_reference(path: str, reference: SecretReference) -> Problem:
    """For a place that no server is given."""
    message = f"${{{reference.kind}:…}} cannot stand here: it is looked up when a server starts"
    return Problem(path, message, "use it in command, args, env, url or headers; elsewhere write ${VAR}")


def _find_closing_brace(text: str, start: int) -> int:
    """Where the `}` is that closes a reference; references inside are stepped over. -1: nowhere.

    In a command every brace counts: `${cmd:jq -r '{a} | .b'}`.
    """
    depth, here = 1, start
    braces = text.startswith("cmd:", start)
    while here < len(text):
        if text.startswith("${", here):
            depth += 1
            here += 1
        elif braces and text[here] == "{":
            depth += 1
        elif text[here] == "}":
            depth -= 1
            if depth == 0:
                return here
        here += 1
    return -1
