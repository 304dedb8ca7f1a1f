"""Expands `${VAR}`, `${secret:NAME}` and similar references, and records where each value came from.

The size of a definition is limited, so that this takes milliseconds.
"""

from __future__ import annotations

import json
import os.path
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import attrs
import msgspec

from mcpd.model.errors import Problem
from mcpd.model.json_path import is_too_large, join_path
from mcpd.model.server_spec import FetchedSecrets, SecretKind, SecretReference, UnavailableSecret
from mcpd.model.text import shorten

MAX_CHARACTERS = 256 * 1024
"""Characters of a definition as JSON. Linux passes at most 128 KiB to a program in one argument."""
MAX_REFERENCES = 1000
MAX_INSERTED = 1024 * 1024
"""Characters of all values that replace references; Linux passes at most 2 MiB to a program."""
_MAX_VALUES = 10_000
_MAX_DEPTH = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_SECRET_KINDS: tuple[SecretKind, ...] = ("secret", "credential", "file", "cmd")
_BRACES = re.compile(r"\$?\{|\}")
MAX_NESTED = 50
"""References within the defaults of others."""
_ESCAPE_HINT = "write $${ for a literal ${"


@attrs.frozen
class Substitution:
    """One value that came from the environment, or was fetched."""

    path: str
    variable: str
    """The variable's name, or `secret:NAME` and the like."""
    value: str = attrs.field(repr=False)


class ExpansionResult(msgspec.Struct, frozen=True):
    value: object
    """The value with its references replaced. Unresolved references remain in the text."""
    substitutions: tuple[Substitution, ...]
    problems: tuple[Problem, ...]
    unresolved: tuple[tuple[str, SecretReference], ...] = ()
    """The JSON path of each reference that has not been fetched, and the reference."""


def expand(
    value: object,
    environ: Mapping[str, str],
    path: str,
    *,
    base_dir: Path | None = None,
    fetched: FetchedSecrets | None = None,
    person: str = "",
) -> ExpansionResult:
    """Replace the references in every string inside `value`. Keys are not changed, nothing is read or run.

    - `${VAR}`, `${env:VAR}`: the value of the variable; a problem if it is not set.
    - `${VAR:-default}`: the default if the variable is not set or empty. The default may contain references.
    - `${secret:NAME}`, `${credential:NAME}`, `${file:PATH}`, `${cmd:COMMAND}`: the value in `fetched`. With
      `:-default` (not for a command), the default if the secret is missing or empty. Variables in the path
      or in the command's words are replaced; a relative path is resolved against `base_dir`.
    - `$${`: a literal `${`.

    With `person`, `${secret:NAME}` is that person's, `NAME@PERSON`, except in the member `oauth` of `value`:
    there, it belongs to mcpd's own client.

    Inserted values are not expanded again.
    """
    work = _Expansion(environ, base_dir or Path("/"), fetched or {})
    work.person, work.shared_path = person, join_path(path, "oauth")
    expanded = work.expand_value(value, path)
    unresolved = tuple(dict.fromkeys(work.unresolved))
    return ExpansionResult(expanded, tuple(work.substitutions), tuple(work.problems), unresolved)


class _Expansion:
    person = shared_path = ""
    """Whose secrets are used, and the path below which they are those of all."""

    def __init__(self, environ: Mapping[str, str], base_dir: Path, fetched: FetchedSecrets) -> None:
        self.environ = environ
        self.base_dir = base_dir
        self.fetched = fetched
        self.substitutions: list[Substitution] = []
        self.problems: list[Problem] = []
        self.unresolved: list[tuple[str, SecretReference]] = []
        self.inserted = 0
        """Characters of the values that have replaced references."""

    def expand_value(self, value: object, path: str) -> object:
        if isinstance(value, str):
            expanded = self.expand_text(value, path) if "${" in value else value
            if _is_unusable(expanded):
                message = "contains a NUL character or an unpaired surrogate"
                self.problems.append(Problem(path, message, "remove it"))
            return expanded
        if isinstance(value, Mapping):
            return {key: self.expand_value(inner, join_path(path, str(key))) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.expand_value(inner, join_path(path, index)) for index, inner in enumerate(value)]
        return value

    def expand_text(self, text: str, path: str) -> str:
        pieces: list[str] = []
        here = 0
        while (start := text.find("${", here)) >= 0:
            if start > here and text[start - 1] == "$":
                pieces.append(text[here : start - 1] + "${")
                here = start + 2
                continue
            end = find_closing_brace(text, start + 2)
            if end == -1:
                message = f"a ${{ is never closed by }}, or more than {MAX_NESTED} are nested"
                self.problems.append(Problem(path, message, _ESCAPE_HINT))
                break
            pieces += text[here:start], self.expand_reference(text[start + 2 : end], path)
            here = end + 1
        return "".join(pieces) + text[here:]

    def expand_reference(self, inside: str, path: str) -> str:
        kind = next((kind for kind in _SECRET_KINDS if inside.startswith(f"{kind}:")), None)
        if kind is not None:
            return self.expand_secret(kind, inside.removeprefix(f"{kind}:"), path)
        body, dash, default = inside.partition(":-")
        name = body.removeprefix("env:")
        if not _NAME.fullmatch(name):
            message = f"${{{shorten(body, 40)}}} is not a reference that mcpd supports"
            fix = f"put the value in an environment variable and write ${{VAR}}; {_ESCAPE_HINT}"
            self.problems.append(Problem(path, message, fix))
            return ""
        value = self.environ.get(name)
        if value is None and not dash:
            message = f"the environment variable {name} is not set"
            fix = f"set {name} in the environment of mcpd, or give a default: ${{{name}:-…}}"
            self.problems.append(Problem(path, message, fix))
            return ""
        if dash and not value:
            return self.expand_text(default, path)
        assert value is not None
        return self.insert(name, value, path)

    def insert(self, name: str, value: str, path: str) -> str:
        """Return the value of a reference, or nothing if all values together are too long."""
        before, self.inserted = self.inserted, self.inserted + len(value)
        if self.inserted > MAX_INSERTED:
            if before <= MAX_INSERTED:
                message = f"with {name}, the values of references have more than {MAX_INSERTED} characters"
                self.problems.append(Problem(path, message, "put long values into a file"))
            return ""
        self.substitutions.append(Substitution(path, name, value))
        return value

    def expand_secret(self, kind: SecretKind, inside: str, path: str) -> str:
        body, dash, default = (inside, "", "") if kind == "cmd" else inside.partition(":-")
        try:
            words = self.parse_arguments(kind, body, path)
        except ValueError as error:
            fix = "write ${secret:NAME}, ${credential:NAME}, ${file:PATH} or ${cmd:COMMAND ARGUMENTS}"
            self.problems.append(Problem(path, f"${{{kind}:…}} {error}", fix))
            return ""
        if self.person and kind == "secret" and not path.startswith(self.shared_path):
            words = (f"{words[0]}@{self.person}",)
        reference = SecretReference(kind, words)
        value = self.fetched.get(reference)
        if value is None:
            self.unresolved.append((path, reference))
            rest = dash + self.expand_text(default, path) if dash else ""
            return f"${{{kind}:{shlex.join(words) if kind == 'cmd' else words[0]}{rest}}}"
        if dash and (value == "" or (isinstance(value, UnavailableSecret) and value.missing)):
            return self.expand_text(default, path)
        if isinstance(value, UnavailableSecret):
            self.problems.append(Problem(path, value.message, value.fix))
            return ""
        return self.insert(f"{kind}:{words[0]}", value, path)

    def parse_arguments(self, kind: SecretKind, body: str, path: str) -> tuple[str, ...]:
        """Raises ValueError with the predicate of an error message."""
        if kind == "cmd":
            try:
                words = shlex.split(body)
            except ValueError as error:
                raise ValueError(f"cannot be split into words: {str(error).lower()}") from None
            words = [self.expand_text(word, path) if "${" in word else word for word in words]
            if not words or not words[0]:
                raise ValueError("names no command")
            return tuple(words)
        if kind == "file":
            file = self.expand_text(body, path) if "${" in body else body
            if not file or "\0" in file:
                raise ValueError("names no file")
            return (os.path.normpath(self.base_dir / expand_home(file, self.environ)),)
        if not (_NAME if kind == "secret" else _CREDENTIAL).fullmatch(body):
            raise ValueError(f"names no {kind}: {shorten(body, 40)!r}")
        return (body,)


def _is_unusable(text: str) -> bool:
    """JSON strings may contain NUL and unpaired surrogates; a program's arguments may not."""
    try:
        return b"\0" in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return True


def expand_home(path: str, environ: Mapping[str, str]) -> str:
    """Replace a leading `~` by the user's home directory; `~user` is not supported."""
    if path == "~" or path.startswith("~/"):
        return (environ.get("HOME") or os.path.expanduser("~")) + path[1:]
    return path


def misplaced_reference(path: str, reference: SecretReference) -> Problem:
    """Return the problem for a secret in a field that is not passed to a server."""
    message = f"${{{reference.kind}:…}} cannot be used here, because it is fetched when a server starts"
    return Problem(path, message, "use it in command, args, env, url or headers; elsewhere write ${VAR}")


def find_closing_brace(text: str, start: int) -> int:
    """Return the index of the `}` that closes a reference, or -1. Nested references are skipped.

    In a command every brace counts: `${cmd:jq -r '{a} | .b'}`. More than MAX_NESTED are not closed.
    """
    depth = 1
    is_command = text.startswith("cmd:", start)
    for brace in _BRACES.finditer(text, start):
        if brace[0] == "${" or (is_command and brace[0] == "{"):
            depth += 1
            if depth > MAX_NESTED:
                break
        elif brace[0] == "}":
            depth -= 1
            if depth == 0:
                return brace.start()
    return -1


def size_problem(definition: Mapping[str, object]) -> tuple[str, str]:
    """Return what is too large about a definition, as the end of a sentence, and how to fix it; empty if
    nothing is."""
    if is_too_large(definition, _MAX_DEPTH, _MAX_VALUES):
        return f"is nested too deeply, or has more than {_MAX_VALUES} values", "flatten it"
    text = json.dumps(definition, ensure_ascii=False, skipkeys=True, default=str)
    if len(text) > MAX_CHARACTERS:
        return f"has more than {MAX_CHARACTERS} characters", "put long values into a file"
    if text.count("${") > MAX_REFERENCES:
        return f"has more than {MAX_REFERENCES} references", "remove some"
    return "", ""
