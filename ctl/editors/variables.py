"""Translates references in the strings of an editor's file to mcpd's `${VARIABLE}`, and reads `.env` files.

The catalog names the kinds of references that an editor knows:

    bare        ${NAME}                     default     ${NAME:-default}
    env         ${env:NAME}                 dollar      $NAME
    env-dollar  $env:NAME                   words       ${userHome}, ${workspaceFolder}, ${pathSeparator} …
    input       ${input:id}                 file        ${file:/path}
    curly       {env:NAME}, {file:path}     claude      ${CLAUDE_PROJECT_DIR}
    continue    ${{ secrets.NAME }}         keyring     ${keyring:NAME}
    dotenv      a variable may come from an `.env` file

Everything else is plain text to that editor and stays plain text: a `${` in it becomes `$${`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from mcpd.config.loader import MAX_FILE_SIZE
from mcpd.config.variables import find_closing_brace
from mcpd.files.regular import read_regular_file

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CURLY = re.compile(r"\{(env|file):([^{}]*)\}")
_DOUBLE = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([A-Za-z0-9_.-]+)\s*\}\}")
_DOLLAR = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_ENV_DOLLAR = re.compile(r"\$env:([A-Za-z_][A-Za-z0-9_]*)")
_WINDOW_VARIABLES = ("file", "relativeFile", "selectedText", "lineNumber", "execPath", "defaultBuildTask")


class UnusableEntry(Exception):
    """The entry cannot be imported. The message is the reason, for the user."""


@attrs.frozen
class NeededSecret:
    """A secret that a definition refers to and that the file does not contain."""

    name: str
    prompt: str
    value: str | None = attrs.field(default=None, repr=False)
    """The value, if another file contains it."""
    owner: str = ""
    """Who asks for it: an editor, or a file of it. Others may need another value under the same name."""


@attrs.define
class VariableTranslator:
    """Translates the strings of one entry, and collects the secrets it needs and notes for the user."""

    kinds: frozenset[str]
    home: Path
    workspace: Path | None = None
    directory: Path | None = None
    """The directory of the file that contains the entry."""
    inputs: Mapping[str, Mapping[str, object]] = attrs.field(factory=dict)
    """VS Code's inputs by id."""
    dotenv: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    editor: str = ""
    file: str = ""
    """The file that contains the entry and the inputs."""
    needed_secrets: list[NeededSecret] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)

    def translate(self, text: str) -> str:
        """Return `text` in mcpd's syntax. Raises UnusableEntry."""
        pieces: list[str] = []
        here = 0
        while here < len(text):
            end, piece = self._reference(text, here)
            if end == here and text.startswith("${", here):
                self._note_plain(text, here)
                end, piece = here + 2, "$${"
            elif end == here:
                end, piece = here + 1, text[here]
            elif piece.startswith("${") and pieces and pieces[-1].endswith("$"):
                raise UnusableEntry(
                    f"{_shorten(text)} has a $ immediately before a variable reference, "
                    "which mcpd does not support"
                )
            pieces.append(piece)
            here = end
        return "".join(pieces)

    def _note_plain(self, text: str, here: int) -> None:
        end = find_closing_brace(text, here + 2)
        if end > 0 and _NAME.match(text, here + 2):
            self.notes.append(
                f"{_shorten(text[here : end + 1])} is plain text to this editor and is passed on unchanged"
            )

    def _reference(self, text: str, here: int) -> tuple[int, str]:
        """Return the end and the translation of the reference at `here`; `here` itself if there is none."""
        ways: list[tuple[str, re.Pattern[str], Callable[[re.Match[str]], str]]] = [
            ("continue", _DOUBLE, lambda found: self.add_secret(found[1])),
            ("curly", _CURLY, lambda found: self._prefixed(found[1], found[2])),
            ("env-dollar", _ENV_DOLLAR, lambda found: self._variable(found[1])),
            ("dollar", _DOLLAR, lambda found: self._variable(found[1])),
        ]
        for kind, pattern, way in ways:
            if kind in self.kinds and (found := pattern.match(text, here)):
                return found.end(), way(found)
        if not text.startswith("${", here):
            return here, ""
        end = find_closing_brace(text, here + 2)
        piece = None if end < 0 else self._braced(text[here + 2 : end])
        return (here, "") if piece is None else (end + 1, piece)

    def _braced(self, inside: str) -> str | None:
        """Translate `${inside}`; return None if it is plain text to this editor."""
        name, dash, default = inside.partition(":-")
        if "claude" in self.kinds and name in ("CLAUDE_PROJECT_DIR", "CLAUDE_PLUGIN_ROOT"):
            return self._of_claude(name)
        word = "words" in self.kinds and name in ("workspaceFolder", "workspaceFolderBasename", "userHome")
        bare = "bare" in self.kinds and not word and (not dash or "default" in self.kinds)
        if bare and _NAME.fullmatch(name):
            return self._variable(name, dash + self.translate(default) if dash else "")
        prefix, colon, rest = inside.partition(":")
        if colon and prefix in self.kinds & {"env", "input", "file", "keyring"}:
            return self._prefixed(prefix, rest.strip())
        if "words" in self.kinds or "unknown" in self.kinds:
            return self._word(prefix, inside)
        return None

    def _of_claude(self, name: str) -> str:
        if name == "CLAUDE_PROJECT_DIR" and self.workspace is not None:
            return _escape(str(self.workspace))
        raise UnusableEntry(f"only Claude Code knows the value of ${{{name}}}")

    def _prefixed(self, prefix: str, rest: str) -> str:
        if prefix == "env":
            name, dash, default = rest.partition(":-")
            return self._variable(name, dash + self.translate(default) if dash else "")
        if prefix == "keyring":
            return self.add_secret(rest)
        if prefix == "file":
            return self._file(rest)
        return self._input(rest)

    def _word(self, prefix: str, inside: str) -> str | None:
        match prefix:
            case "userHome":
                return "${HOME}"
            case "pathSeparator" | "/":
                return "/"
            case "workspaceFolder" | "workspaceFolderBasename" | "workspaceRoot" | "cwd":
                if self.workspace is None:
                    raise UnusableEntry(
                        f"${{{prefix}}} differs in every window; choose a directory with --project DIR"
                    )
                return _escape(self.workspace.name if prefix.endswith("Basename") else str(self.workspace))
        if "unknown" in self.kinds and (prefix in ("config", "command", *_WINDOW_VARIABLES)):
            raise UnusableEntry(f"only the editor knows the value of ${{{_shorten(inside)}}}")
        return None

    def _input(self, name: str) -> str:
        asked = self.inputs.get(name, {})
        default = asked.get("default")
        if asked.get("type") == "command":
            raise UnusableEntry(f"a command of the editor provides the value of ${{input:{name}}}")
        if isinstance(default, str) and default and asked.get("password") is not True:
            self.notes.append(f"${{input:{name}}} was replaced by its default")
            return _escape(default)
        prompt = asked.get("description")
        prompt = prompt if isinstance(prompt, str) else ""
        return self.add_secret(name, prompt, asked_in=self.file)

    def _file(self, name: str) -> str:
        """Refer to the same file, so that mcpd sees later changes."""
        path = str(self.home) + name[1:] if name.startswith("~/") else name
        path = os.path.normpath(os.path.join(self.directory, path)) if self.directory else path
        try:
            data = read_regular_file(path, MAX_FILE_SIZE) if os.path.isabs(path) else b""
            value = data.decode().strip()
        except (OSError, ValueError):
            value = None
        if not value:
            raise UnusableEntry(f"the file {_shorten(name)} that it refers to is empty or unreadable")
        if re.search(r"[${}]|:-|\s$", path):  # not possible in a ${file:…} of mcpd
            return self.add_secret(os.path.basename(name), value=value)
        return f"${{file:{path}}}"

    def _variable(self, name: str, default: str = "") -> str:
        if not _NAME.fullmatch(name):
            raise UnusableEntry(f"{_shorten(name)} is not a valid variable name")
        if "dotenv" in self.kinds and name in self.dotenv:
            return self.add_secret(name)  # mcpd does not read .env files
        return f"${{{name}{default}}}"

    def add_secret(self, name: str, prompt: str = "", value: str | None = None, *, asked_in: str = "") -> str:
        """Return a reference to a secret of this entry. `asked_in` is the file that asks for it, if only that
        file does rather than the editor."""
        ours = secret_name(name)
        known = self.dotenv.get(name) if value is None else value
        if ours not in [one.name for one in self.needed_secrets]:
            owner = re.sub(r"\W", "_", f"_{self.editor}" if self.editor[:1].isdigit() else self.editor)
            if asked_in:
                owner += f"_{hashlib.sha256(os.fsencode(asked_in)).hexdigest()[:6]}"
            self.needed_secrets.append(NeededSecret(ours, prompt or name, known, owner))
        return secret_reference(ours)


def secret_name(text: str) -> str:
    """Turn any name into the name of a secret: `github-token` becomes `GITHUB_TOKEN`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()[:64] or "SECRET"
    return name if not name[0].isdigit() else f"_{name}"


def secret_reference(name: str) -> str:
    """Return the reference to a stored secret."""
    return f"${{secret:{name}}}"


def _escape(text: str) -> str:
    return text.replace("${", "$${")


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


_LINE = re.compile(
    r"""^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*
    (?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>[^']*)'|(?P<bare>[^\r\n]*))""",
    re.VERBOSE | re.MULTILINE,
)
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\"": '"', r"\\": "\\", r"\$": "$"}


def read_dotenv(path: Path) -> dict[str, str] | None:
    """Return the variables of an `.env` file in order; None if it is unreadable."""
    try:
        text = read_regular_file(path, MAX_FILE_SIZE).decode("utf-8-sig")
        return parse_dotenv(text.replace("\r\n", "\n").replace("\r", "\n"))
    except (OSError, ValueError):
        return None


def parse_dotenv(text: str) -> dict[str, str]:
    """Parse NAME=value lines. ` #` begins a comment outside of quotes; `\\n` works in double quotes."""
    values: dict[str, str] = {}
    for found in _LINE.finditer(text):
        if found["double"] is not None:
            value = re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), found["double"])
        elif found["single"] is not None:
            value = found["single"]
        else:
            value = re.split(r"\s#", found["bare"], maxsplit=1)[0].strip()
        values[found["name"]] = value
    return values
