"""The files of editors: variables, scopes, projects and links."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ctl.editors.config_files import EDITORS, UserContext, find_editor_files


def files(home: Path, *paths: str) -> None:
    for path in paths:
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")


def around(
    home: Path, project: str = "src/shop", *, mac: bool = False, environ: Mapping[str, str] | None = None
) -> UserContext:
    directory = home / project
    directory.mkdir(parents=True, exist_ok=True)
    return UserContext({"HOME": str(home), **(environ or {})}, directory, mac=mac, root=home / "root")


def found(surroundings: UserContext) -> list[tuple[str, str, str]]:
    home = surroundings.home
    return [
        (one.editor.name, one.location.scope, str(one.path.relative_to(home)))
        for one in find_editor_files(EDITORS, surroundings)
    ]


def test_project_files_are_searched_up_to_the_repository(tmp_path: Path) -> None:
    """Without a repository, only in the current directory."""
    files(tmp_path, "src/.mcp.json", "src/shop/.mcp.json", "src/shop/web/.mcp.json")
    assert [path for *_, path in found(around(tmp_path, "src/shop/web"))] == ["src/shop/web/.mcp.json"]
    (tmp_path / "src/shop/.git").mkdir()
    assert [path for *_, path in found(around(tmp_path, "src/shop/web"))] == [
        "src/shop/web/.mcp.json",
        "src/shop/.mcp.json",
    ]


def test_shared_file_is_found_once(tmp_path: Path) -> None:
    """In the home directory, a project file is the user's; a link counts once."""
    files(tmp_path, ".cursor/mcp.json")
    (tmp_path / ".kiro/settings").mkdir(parents=True)
    (tmp_path / ".kiro/settings/mcp.json").symlink_to(tmp_path / ".cursor/mcp.json")
    assert found(around(tmp_path, ".")) == [("cursor", "user", ".cursor/mcp.json")]


@pytest.mark.parametrize(
    ("variable", "value", "path"),
    [
        ("XDG_CONFIG_HOME", "{home}/x", "x/zed/settings.json"),
        ("XDG_CONFIG_HOME", "{home}/x", "x/Code/User/mcp.json"),
        ("XDG_CONFIG_HOME", "not/absolute", ".config/goose/config.yaml"),
        ("CLAUDE_CONFIG_DIR", "{home}/c", "c/.claude.json"),
        ("CODEX_HOME", "{home}/c", "c/config.toml"),
        ("COPILOT_HOME", "{home}/c", "c/mcp-config.json"),
        ("OPENCODE_CONFIG", "{home}/o.json", "o.json"),
        ("OPENCODE_CONFIG_DIR", "{home}/o", "o/opencode.jsonc"),
        ("CLINE_MCP_SETTINGS_PATH", "{home}/cline.json", "cline.json"),
    ],
)
def test_environment_variables_of_editors_move_files(
    tmp_path: Path, variable: str, value: str, path: str
) -> None:
    """The usual path is not read then."""
    files(tmp_path, path, ".codex/config.toml", ".claude.json")
    seen = [path for *_, path in found(around(tmp_path, environ={variable: value.format(home=tmp_path)}))]
    assert path in seen
    assert (".codex/config.toml" in seen) is (variable != "CODEX_HOME")
    assert (".claude.json" in seen) is (variable != "CLAUDE_CONFIG_DIR")


def test_desktop_programs_on_macos_use_library(tmp_path: Path) -> None:
    """Zed and the command line tools do not."""
    library = "Library/Application Support"
    files(
        tmp_path, f"{library}/Claude/claude_desktop_config.json", f"{library}/Code/User/profiles/a/mcp.json"
    )
    files(tmp_path, ".config/zed/settings.json")
    assert [name for name, *_ in found(around(tmp_path, mac=True))] == ["claude-desktop", "vscode", "zed"]
