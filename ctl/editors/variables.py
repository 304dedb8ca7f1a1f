"""What the strings of an editor's file refer to → our `${VARIABLE}`, or what is known already.

Which kinds of reference an editor has stands in the catalogue:

    bare        ${NAME}                     default     ${NAME:-otherwise}
    env         ${env:NAME}                 dollar      $NAME
    env-dollar  $env:NAME                   words       ${userHome}, ${workspaceFolder}, ${pathSeparator} …
    input       ${input:id}                 file        ${file:/path}
    keyring     ${keyring:NAME}             curly       {env:NAME}, {file:path}
    continue    ${{ secrets.NAME }}         claude      ${CLAUDE_PROJECT_DIR}
    dotenv      a variable may be one of an `.env` file

Everything else is plain text to that editor, and stays plain text: our own `${` is then written `$${`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CURLY = re.compile(r"\{(env|file):([^{}]*)\}")
_DOUBLE = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([A-Za-z0-9_.-]+)\s*\}\}")
_DOLLAR = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_ENV_DOLLAR = re.compile(r"\$env:([A-Za-z_][A-Za-z0-9_]*)")
_WINDOW_VARIABLES = ("file", "relativeFile", "selectedText", "lineNumber", "execPath", "defaultBuildTask")


class UnusableEntry(Exception):
    """An entry that cannot be taken over; the message says why, for people."""


@attrs.frozen
class NeededSecret:
    """A secret that a definition refers to and that is not in the file."""

    name: str
    prompt: str
    value: str | None = attrs.field(default=None, repr=False)
    """Where it is known all the same, from another file."""


@attrs.define
class VariableTranslator:
    """Translates the strings of one entry; what it met on the way is kept in it."""

    kinds: frozenset[str]
    home: Path
    workspace: Path | None = None
    directory: Path | None = None
    """Where the file is that the entry stands in."""
    inputs: Mapping[str, Mapping[str, object]] = attrs.field(factory=dict)
    """VS Code's questions, by id."""
    dotenv: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    needed_secrets: list[NeededSecret] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)

    def translate(self, text: str) -> str:
        """`text` in our syntax. Raises Unusable."""
        pieces: list[str] = []
        here = 0
        while here < len(text):
            end, piece = self._reference(text, here)
            if end == here:
                if text.startswith("${", here):
                    self._note_plain(text, here)
                pieces.append("$${" if text.startswith("${", here) else text[here])
                here += 2 if text.startswith("${", here) else 1
                continue
            if piece.startswith("${") and pieces and pieces[-1].endswith("$"):
                raise UnusableEntry(f"a $ stands right before a reference in {_shorten(text)}")
            pieces.append(piece)
            here = end
        return "".join(pieces)

    def _note_plain(self, text: str, here: int) -> None:
        end = _closing_brace(text, here + 2)
        if end > 0 and _NAME.match(text, here + 2):
            self.notes.append(
                f"{_shorten(text[here : end + 1])} means nothing to this editor, and is handed over as it is"
            )

    def _reference(self, text: str, here: int) -> tuple[int, str]:
        """Where the reference at `here` ends, and what it becomes; `here` again when there is none."""
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
        end = _closing_brace(text, here + 2)
        piece = None if end < 0 else self._braced(text[here + 2 : end])
        return (here, "") if piece is None else (end + 1, piece)

    def _braced(self, inside: str) -> str | None:
        """Of `${inside}`; None when this editor takes it for plain text."""
        name, dash, default = inside.partition(":-")
        if "claude" in self.kinds and name in ("CLAUDE_PROJECT_DIR", "CLAUDE_PLUGIN_ROOT"):
            if name == "CLAUDE_PROJECT_DIR" and self.workspace is not None:
                return _escape(str(self.workspace))
            raise UnusableEntry(f"${{{name}}} is known to Claude Code only")
        word = "words" in self.kinds and name in ("workspaceFolder", "workspaceFolderBasename", "userHome")
        if (
            "bare" in self.kinds
            and _NAME.fullmatch(name)
            and not word
            and (not dash or "default" in self.kinds)
        ):
            return self._variable(name, dash + self.translate(default) if dash else "")
        prefix, colon, rest = inside.partition(":")
        if colon and prefix in self.kinds & {"env", "input", "file", "keyring"}:
            return self._prefixed(prefix, rest.strip())
        if "words" in self.kinds or "unknown" in self.kinds:
            return self._word(prefix, inside)
        return None

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
                        f"${{{prefix}}} is another directory in every window; choose one with --project DIR"
                    )
                return _escape(self.workspace.name if prefix.endswith("Basename") else str(self.workspace))
        if "unknown" in self.kinds and (prefix in ("config", "command", *_WINDOW_VARIABLES)):
            raise UnusableEntry(f"${{{_shorten(inside)}}} is known to the editor only")
        return None

    def _input(self, name: str) -> str:
        asked = self.inputs.get(name, {})
        default = asked.get("default")
        if asked.get("type") == "command":
            raise UnusableEntry(f"the value of ${{input:{name}}} comes from a command of the editor")
        if isinstance(default, str) and default and asked.get("password") is not True:
            self.notes.append(f"the default answer was taken for ${{input:{name}}}")
            return _escape(default)
        prompt = asked.get("description")
        return self.add_secret(name, prompt if isinstance(prompt, str) and prompt else "")

    def _file(self, name: str) -> str:
        """The same file, so that a changed secret is the changed one for us, too."""
        path = str(self.home) + name[1:] if name.startswith("~/") else name
        path = os.path.normpath(os.path.join(self.directory, path)) if self.directory else path
        try:
            value = Path(path).read_text().strip() if os.path.isabs(path) else None
        except (OSError, ValueError):
            value = None
        if not value:
            raise UnusableEntry(f"there is nothing to read in the file {_shorten(name)} that it refers to")
        if re.search(r"[${}]|:-|\s$", path):  # which would mean something in a reference of ours
            return self.add_secret(os.path.basename(name), value=value)
        return f"${{file:{path}}}"

    def _variable(self, name: str, default: str = "") -> str:
        if not _NAME.fullmatch(name):
            raise UnusableEntry(f"{_shorten(name)} is no name of a variable")
        if "dotenv" in self.kinds and name in self.dotenv:
            return self.add_secret(name)  # mcpd does not have that file
        return f"${{{name}{default}}}"

    def add_secret(self, name: str, prompt: str = "", value: str | None = None) -> str:
        ours = secret_name(name)
        known = self.dotenv.get(name) if value is None else value
        if ours not in [one.name for one in self.needed_secrets]:
            self.needed_secrets.append(NeededSecret(ours, prompt or name, known))
        return secret_reference(ours)


def secret_name(text: str) -> str:
    """A name for a secret made of whatever it was called: `github-token` → `GITHUB_TOKEN`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()[:64] or "SECRET"
    return name if not name[0].isdigit() else f"_{name}"


def secret_reference(name: str) -> str:
    """How a definition refers to a stored secret."""
    return f"${{secret:{name}}}"


def _escape(text: str) -> str:
    return text.replace("${", "$${")


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _closing_brace(text: str, start: int) -> int:
    """Where the `}` is that closes a reference, inner ones stepped over. -1: nowhere."""
    depth, here = 1, start
    while here < len(text):
        if text.startswith("${", here):
            depth, here = depth + 1, here + 1
        elif text[here] == "}":
            depth -= 1
            if depth == 0:
                return here
        here += 1
    return -1


_LINE = re.compile(
    r"""^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.]*)[ \t]*=[ \t]*
    (?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>[^']*)'|(?P<bare>[^\r\n]*))""",
    re.VERBOSE | re.MULTILINE,
)
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\"": '"', r"\\": "\\", r"\$": "$"}


def read_dotenv(path: Path) -> dict[str, str] | None:
    """Its variables in order; None when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return None
    return parse_dotenv(text)


def parse_dotenv(text: str) -> dict[str, str]:
    """A `#` after a blank begins a remark, but not inside quotes; in double quotes `\\n` is a line break."""
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
