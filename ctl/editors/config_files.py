"""Where each editor keeps its list of MCP servers: the table of editors, and the files of this user.

Differences in paths and keys belong in the table. `read_entries` handles the file shapes, `variables` the
reference syntaxes, `convert_entry` the fields and `mcpd_entry` the forms of mcpd's entry.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import attrs

from mcpd.config.in_place_edits.document import KeyPath

Scope = Literal["project", "local", "user", "system"]
"""To whom a file applies. If two servers have the same name, the scope further left keeps it."""

SCOPES: tuple[Scope, ...] = ("project", "local", "user", "system")

FileShape = Literal["entries", "claude", "opencode"]
"""The layout of a file: entries at a slot; also by project; under `mcp` in one of two versions."""

EntryForm = Literal["plain", "typed", "copilot", "codex", "opencode", "zed", "continue", "goose", "vibe"]
"""The form of mcpd's own entry."""

SERVERS: KeyPath = ("mcpServers",)


@attrs.frozen
class ConfigLocation:
    """A file that a program reads if it exists.

    `path` begins with `~/`, `./` (the project), `/`, `{config}` ($XDG_CONFIG_HOME), `{app}` (where desktop
    programs keep settings) or `{VARIABLE:default}`; with an empty default, the variable must be set. `*`
    matches any name.
    """

    path: str
    scope: Scope
    slot: KeyPath = SERVERS
    shape: FileShape = "entries"
    installable: bool = False
    """Whether mcpd's entry is written here if no other such file of the scope exists."""


@attrs.frozen
class EditorSpec:
    """One program with MCP servers."""

    name: str
    """The name on the command line and in `mcpctl bridge --client`."""
    title: str
    locations: tuple[ConfigLocation, ...]
    variables: frozenset[str] = frozenset()
    """The kinds of references in its strings, see `variables`."""
    timeout_unit: Literal["ms", "s", "either"] = "ms"
    """The unit of `timeout`. `either`: documentation and releases disagree; values under 1000 are seconds."""
    default_url_type: Literal["auto", "sse"] = "auto"
    """The type of a `url` without one."""
    disable_method: tuple[str, bool] | Literal["excluded"] | None = None
    """How an entry is disabled: a member and its value, or Gemini's list of names."""
    entry_form: EntryForm | None = "plain"
    """None if it cannot use mcpd."""
    next_step: str = ""
    """What the user must do to load the new entry."""


def _user(
    path: str, slot: KeyPath = SERVERS, *, ours: bool = True, shape: FileShape = "entries"
) -> ConfigLocation:
    return ConfigLocation(path, "user", slot, shape, ours)


def _project(
    path: str, slot: KeyPath = SERVERS, *, shape: FileShape = "entries", ours: bool = True
) -> ConfigLocation:
    return ConfigLocation(path, "project", slot, shape, ours)


def _both(path: str) -> tuple[ConfigLocation, ConfigLocation]:
    """Return the same path in the project and in the user's home directory."""
    return _project(f"./{path}"), _user(f"~/{path}")


_VSCODE = frozenset({"env", "input", "words", "unknown"})
_CURSOR = frozenset({"env", "words"})
_SHELL = frozenset({"bare", "default"})
_DISABLED = ("disabled", True)
_NOT_ENABLED = ("enabled", False)
_CODE = ("Code", "Code - Insiders", "VSCodium")


def _vscode(name: str, title: str, directory: str, *more: ConfigLocation) -> EditorSpec:
    user = f"{{app}}/{directory}/User"
    return EditorSpec(
        name,
        title,
        (
            *more,
            _user(f"{user}/mcp.json", ("servers",)),
            _user(f"{user}/profiles/*/mcp.json", ("servers",), ours=False),
            _user(f"{user}/settings.json", ("mcp", "servers"), ours=False),
        ),
        _VSCODE,
        entry_form="typed",
        next_step="start mcpd in `MCP: List Servers`; VS Code asks once whether you trust it",
    )


def _in_code(path: str) -> tuple[ConfigLocation, ...]:
    """Return the settings of an extension in each variant of VS Code."""
    return tuple(_user(f"{{app}}/{code}/User/globalStorage/{path}", ours=code == "Code") for code in _CODE)


EDITORS: tuple[EditorSpec, ...] = (
    EditorSpec(
        "claude-code",
        "Claude Code",
        (
            _project("./.mcp.json"),
            _user("{CLAUDE_CONFIG_DIR:~}/.claude.json", shape="claude"),
            ConfigLocation("/etc/claude-code/managed-mcp.json", "system"),
            ConfigLocation("/Library/Application Support/ClaudeCode/managed-mcp.json", "system"),
        ),
        _SHELL | {"claude"},
        next_step="start a new session, or run /mcp in a running one",
    ),
    EditorSpec(
        "claude-desktop",
        "Claude Desktop",
        (_user("{app}/Claude/claude_desktop_config.json"),),
        next_step="quit and restart Claude Desktop",
    ),
    EditorSpec(
        "cursor",
        "Cursor",
        _both(".cursor/mcp.json"),
        _CURSOR,
        next_step="enable mcpd in Cursor's settings under MCP",
    ),
    _vscode(
        "vscode",
        "VS Code",
        "Code",
        _project("./.vscode/mcp.json", ("servers",)),
        _project("./.vscode/settings.json", ("mcp", "servers"), ours=False),
        _user("~/.vscode-server/data/User/mcp.json", ("servers",), ours=False),
    ),
    _vscode("vscode-insiders", "VS Code Insiders", "Code - Insiders"),
    _vscode("vscodium", "VSCodium", "VSCodium"),
    EditorSpec(
        "windsurf",
        "Windsurf",
        (
            _user("~/.codeium/windsurf/mcp_config.json"),
            _user("~/.codeium/windsurf-next/mcp_config.json", ours=False),
            _user("~/.codeium/mcp_config.json", ours=False),
        ),
        frozenset({"env", "file"}),
        disable_method=_DISABLED,
        next_step="press Refresh in Windsurf's list of MCP servers",
    ),
    EditorSpec(
        "zed",
        "Zed",
        (
            _project("./.zed/settings.json", ("context_servers",)),
            _user("{config}/zed/settings.json", ("context_servers",)),
        ),
        timeout_unit="either",
        disable_method=_NOT_ENABLED,
        entry_form="zed",
    ),
    EditorSpec(
        "gemini",
        "Gemini CLI",
        (
            _project("./.gemini/settings.json"),
            _user("~/.gemini/settings.json"),
            ConfigLocation("/etc/gemini-cli/settings.json", "system"),
        ),
        _SHELL | {"dollar", "dotenv"},
        default_url_type="sse",
        disable_method="excluded",
    ),
    EditorSpec(
        "antigravity",
        "Antigravity",
        (
            _project("./.agents/mcp_config.json"),
            _user("~/.gemini/config/mcp_config.json"),
            _user("~/.gemini/antigravity/mcp_config.json", ours=False),
        ),
        disable_method=_DISABLED,
    ),
    EditorSpec(
        "codex",
        "Codex",
        (
            _project("./.codex/config.toml", ("mcp_servers",)),
            _user("{CODEX_HOME:~/.codex}/config.toml", ("mcp_servers",)),
        ),
        timeout_unit="s",
        disable_method=_NOT_ENABLED,
        entry_form="codex",
    ),
    EditorSpec(
        "opencode",
        "opencode",
        (
            *(
                _project(f"./{directory}opencode.json{c}", ("mcp",), shape="opencode")
                for directory in ("", ".opencode/")
                for c in ("", "c")
            ),
            *(
                _user(f"{base}opencode.json{c}", ("mcp",), shape="opencode")
                for base in ("{config}/opencode/", "{OPENCODE_CONFIG_DIR:}/")
                for c in ("", "c")
            ),
            _user("{OPENCODE_CONFIG:}", ("mcp",), shape="opencode"),
        ),
        frozenset({"curly"}),
        disable_method=_NOT_ENABLED,
        entry_form="opencode",
    ),
    EditorSpec(
        "cline",
        "Cline",
        (
            _user("{CLINE_MCP_SETTINGS_PATH:}"),
            *_in_code("saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
            _user("~/.cline/data/settings/cline_mcp_settings.json", ours=False),
        ),
        _CURSOR,
        timeout_unit="s",
        disable_method=_DISABLED,
    ),
    EditorSpec(
        "roo",
        "Roo Code",
        (_project("./.roo/mcp.json"), *_in_code("rooveterinaryinc.roo-cline/settings/mcp_settings.json")),
        _CURSOR,
        timeout_unit="s",
        disable_method=_DISABLED,
    ),
    EditorSpec(
        "kilo",
        "Kilo Code",
        (
            _project("./.kilocode/mcp.json"),
            _user("~/.kilocode/cli/global/settings/mcp_settings.json"),
            *_in_code("kilocode.kilo-code/settings/mcp_settings.json"),
        ),
        _CURSOR,
        timeout_unit="s",
        disable_method=_DISABLED,
    ),
    EditorSpec(
        "continue",
        "Continue",
        (
            *(
                _project(f"./.continue/mcpServers/*.{suffix}", ours=False)
                for suffix in ("yaml", "yml", "json")
            ),
            _project("./.continue/config.yaml", ours=False),
            _user("~/.continue/config.yaml"),
            *(_user(f"~/.continue/mcpServers/*.{suffix}", ours=False) for suffix in ("yaml", "yml", "json")),
        ),
        frozenset({"continue"}),
        timeout_unit="either",
        entry_form="continue",
    ),
    EditorSpec(
        "goose",
        "Goose",
        (_user("{config}/goose/config.yaml", ("extensions",)),),
        timeout_unit="s",
        disable_method=_NOT_ENABLED,
        entry_form="goose",
    ),
    EditorSpec(
        "copilot",
        "Copilot CLI",
        (_project("./.github/mcp.json"), _user("{COPILOT_HOME:~/.copilot}/mcp-config.json")),
        _SHELL | {"env", "dollar"},
        entry_form="copilot",
    ),
    EditorSpec("jetbrains", "JetBrains Junie", _both(".junie/mcp/mcp.json")),
    EditorSpec("kiro", "Kiro", _both(".kiro/settings/mcp.json"), _SHELL | {"env"}, disable_method=_DISABLED),
    EditorSpec(
        "lmstudio",
        "LM Studio",
        (_user("~/.lmstudio/mcp.json"), _user("~/.cache/lm-studio/mcp.json", ours=False)),
    ),
    EditorSpec("amp", "Amp", (_user("{config}/amp/settings.json", ("amp.mcpServers",)),), _SHELL),
    EditorSpec(
        "crush",
        "Crush",
        (
            _project("./.crush.json", ("mcp",)),
            _project("./crush.json", ("mcp",)),
            _user("{config}/crush/crush.json", ("mcp",)),
        ),
        _SHELL | {"dollar"},
        timeout_unit="s",
        disable_method=_DISABLED,
        entry_form="typed",
    ),
    EditorSpec("trae", "Trae", (_user("{app}/Trae/User/mcp.json"),)),
    EditorSpec("qoder", "Qoder", (_user("~/.qoder/mcp.json"),)),
    EditorSpec("factory", "Factory", _both(".factory/mcp.json")),
    EditorSpec("kimi", "Kimi CLI", (_user("~/.kimi/mcp.json"),)),
    EditorSpec(
        "vibe",
        "Mistral Vibe",
        (_user("~/.vibe/config.toml", ("mcp_servers",)),),
        timeout_unit="s",
        entry_form="vibe",
    ),
    EditorSpec(
        "mcporter",
        "mcporter",
        (
            _project("./config/mcporter.json"),
            _user("~/.mcporter/mcporter.json"),
            _user("~/.mcporter/mcporter.jsonc"),
        ),
        _SHELL | {"env-dollar"},
        entry_form=None,
    ),
    EditorSpec(
        "mcpproxy",
        "MCPProxy",
        (_user("~/.mcpproxy/mcp_config.json"),),
        frozenset({"env", "keyring"}),
        entry_form=None,
    ),
    EditorSpec("1mcp", "1MCP", (_user("{config}/1mcp/mcp.json"),), _SHELL, entry_form=None),
)

GENERIC = EditorSpec("file", "a file", (), _SHELL | {"env", "words", "input"}, entry_form=None)
"""The interpretation of a file that belongs to no known program."""

BY_NAME = {editor.name: editor for editor in EDITORS}


# ---- the files of this user and project ----------------------------------------------------------------

_VARIABLE = re.compile(r"\{([A-Z_]+):([^}]*)\}")


@attrs.frozen
class UserContext:
    """Everything on which a path in the catalog depends."""

    environ: Mapping[str, str] = attrs.field(repr=False)
    project: Path
    """The current directory, or the one that the user named."""
    project_given: bool = False
    """Whether the user named it; then it is also the workspace for user files."""
    mac: bool = sys.platform == "darwin"
    root: Path = Path("/")

    @property
    def home(self) -> Path:
        return Path(self.environ.get("HOME") or os.path.expanduser("~"))

    @property
    def config(self) -> Path:
        base = self.environ.get("XDG_CONFIG_HOME", "")
        return Path(base) if os.path.isabs(base) else self.home / ".config"

    @property
    def claude(self) -> Path:
        """The directory of Claude Code's settings."""
        return Path(self.environ.get("CLAUDE_CONFIG_DIR") or self.home / ".claude")

    def project_directories(self) -> list[Path]:
        """Return the project and its parents up to the repository, if there is one."""
        above = [self.project, *self.project.parents]
        for number, directory in enumerate(above):
            if directory == self.home:
                break
            if os.path.exists(directory / ".git"):
                return above[: number + 1]
        return [self.project]

    def display_path(self, path: Path) -> str:
        """Return a path with `~` for the home directory."""
        try:
            return str(Path("~") / path.relative_to(self.home))
        except ValueError:
            return str(path)


@attrs.frozen
class EditorFile:
    """An existing file of an editor."""

    editor: EditorSpec
    location: ConfigLocation
    path: Path
    project: Path | None = None
    """The directory of a project file."""


def resolve_paths(location: ConfigLocation, context: UserContext) -> Iterator[tuple[Path, Path | None]]:
    """Yield the paths of a location, and their projects. Paths with `*` exist; others may not."""
    if location.path.startswith("./"):
        for directory in context.project_directories():
            yield from ((path, directory) for path in _glob(directory, location.path[2:]))
        return
    text = location.path
    if variable := _VARIABLE.match(text):
        value = context.environ.get(variable[1]) or variable[2]
        if not value:
            return
        text = value + text[variable.end() :]
    text = text.replace("{config}", str(context.config))
    text = text.replace(
        "{app}", str(context.home / "Library/Application Support" if context.mac else context.config)
    )
    if text == "~" or text.startswith("~/"):
        text = str(context.home) + text[1:]
    if location.scope == "system":
        text = str(context.root / text.lstrip("/"))
    if os.path.isabs(text):
        yield from ((path, None) for path in _glob(Path("/"), text[1:]))


def find_editor_files(editors: tuple[EditorSpec, ...], context: UserContext) -> list[EditorFile]:
    """Return the existing files, each once, nearest scope first.

    In the home directory, a file that is both the user's and the project's counts as the user's.
    """
    found: dict[str, EditorFile] = {}
    for scope in reversed(SCOPES):
        for editor in editors:
            for place in editor.locations:
                if place.scope != scope:
                    continue
                for path, project in resolve_paths(place, context):
                    if os.path.isfile(path) or os.path.islink(path):
                        found.setdefault(os.path.realpath(path), EditorFile(editor, place, path, project))
    order = {editor.name: number for number, editor in enumerate(EDITORS)}
    return sorted(
        found.values(), key=lambda one: (SCOPES.index(one.location.scope), order.get(one.editor.name, 99))
    )


def _glob(directory: Path, pattern: str) -> list[Path]:
    if "*" not in pattern:
        return [directory / pattern]
    fixed, _, rest = pattern.partition("*")
    base = directory / fixed.rpartition("/")[0]
    return sorted(base.glob(fixed.rpartition("/")[2] + "*" + rest)) if os.path.isdir(base) else []
