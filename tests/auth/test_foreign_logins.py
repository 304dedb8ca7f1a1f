"""Reading the logins of other programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctl.commands import auth as auth_command
from mcpd.auth.foreign_logins import TOOLS, FoundLogins, find_foreign_logins, remove_foreign_login
from tests.auth.foreign_files import EXPIRES, FILES

URL = "https://mcp.example.com/mcp"


def find(home: Path, *urls: str, tools: tuple[str, ...] = tuple(TOOLS)) -> FoundLogins:
    return find_foreign_logins(urls or (URL,), {"HOME": str(home)}, tools)


def test_mcpctl_knows_the_same_programs() -> None:
    assert tuple(TOOLS) == auth_command.TOOLS == tuple(FILES)


@pytest.mark.parametrize("tool", FILES)
def test_each_program(tool: str, tmp_path: Path) -> None:
    path = FILES[tool](tmp_path, URL, "client-1", "access-1", "refresh-1")
    found = find(tmp_path, URL, "https://other.example/mcp")
    (login,) = found.logins[URL]
    assert (login.tool, login.path) == (tool, path)
    assert (login.client_id, login.access_token, login.refresh_token) == ("client-1", "access-1", "refresh-1")
    assert login.expires_at == (None if tool == "mcporter" else pytest.approx(EXPIRES))
    assert login.scopes in (None, ("read",))
    assert found.logins["https://other.example/mcp"] == ()
    assert found.problems == ()
    assert "refresh-1" not in repr(login)
    assert "access-1" not in repr(login)


@pytest.mark.parametrize("tool", FILES)
def test_a_trailing_slash_makes_no_difference(tool: str, tmp_path: Path) -> None:
    FILES[tool](tmp_path, URL + "/", "client-1", "access-1", "refresh-1")
    assert len(find(tmp_path).logins[URL]) == 1


@pytest.mark.parametrize("tool", FILES)
def test_removing_one_keeps_the_rest_and_the_mode(tool: str, tmp_path: Path) -> None:
    path = FILES[tool](tmp_path, URL, "client-1", "access-1", "refresh-1")
    path.chmod(0o640)
    (login,) = find(tmp_path).logins[URL]
    remove_foreign_login(login)
    assert find(tmp_path).logins[URL] == ()
    if tool == "mcp-remote":
        assert not path.exists()
        assert path.with_name(path.name.replace("tokens", "client_info")).exists()
    else:
        assert path.stat().st_mode & 0o777 == 0o640
    if tool == "claude-code":
        assert json.loads(path.read_text())["claudeAiOauth"] == {"accessToken": "its-own"}
    remove_foreign_login(login)


def test_a_login_that_the_program_has_replaced_is_not_removed(tmp_path: Path) -> None:
    FILES["codex"](tmp_path, URL, "client-1", "access-1", "refresh-1")
    (login,) = find(tmp_path).logins[URL]
    path = FILES["codex"](tmp_path, URL, "client-1", "access-2", "refresh-2")
    before = path.read_bytes()
    remove_foreign_login(login)
    assert path.read_bytes() == before


def test_the_newest_version_of_mcp_remote_counts(tmp_path: Path) -> None:
    old = FILES["mcp-remote"](tmp_path, URL, "client-1", "access-1", "refresh-1")
    old.parent.rename(tmp_path / ".mcp-auth" / "mcp-remote-0.1.30")
    for each in (tmp_path / ".mcp-auth" / "mcp-remote-0.1.30").iterdir():
        os.utime(each, (1, 1))
    FILES["mcp-remote"](tmp_path, URL, "client-2", "access-2", "refresh-2")
    assert [each.access_token for each in find(tmp_path).logins[URL]] == ["access-2"]


def test_the_environment_names_other_directories(tmp_path: Path) -> None:
    for tool, variable, directory in (
        ("mcp-remote", "MCP_REMOTE_CONFIG_DIR", ".mcp-auth"),
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude"),
        ("codex", "CODEX_HOME", ".codex"),
        ("opencode", "XDG_DATA_HOME", ".local/share"),
    ):
        FILES[tool](tmp_path / tool, URL, "client-1", "access-1", "refresh-1")
        environ = {"HOME": str(tmp_path), variable: str(tmp_path / tool / directory)}
        assert len(find_foreign_logins((URL,), environ, (tool,)).logins[URL]) == 1


def test_a_file_that_cannot_be_read_is_a_problem_and_not_an_error(tmp_path: Path) -> None:
    for path in (".claude/.credentials.json", ".codex/.credentials.json"):
        (tmp_path / path).parent.mkdir()
    (tmp_path / ".claude/.credentials.json").write_text("{")
    (tmp_path / ".codex/.credentials.json").mkdir()
    found = find(tmp_path)
    assert len(found.problems) == 2
    assert "is not JSON" in found.problems[0]
    assert found.logins[URL] == ()


_NAMES = (
    *("mcpOAuth", "entries", "tokens", "token", "clientInfo", "serverUrl", "server_url", "mcpServerUrl"),
    *("accessToken", "access_token", "clientId", "client_id", "expiresAt", "expires_at", "scopes"),
)
_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.sampled_from([URL, "access-1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.sampled_from(_NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("home")
    for tool in FILES:
        FILES[tool](made, URL, "client-1", "access-1", "refresh-1")
    return made


@given(tool=st.sampled_from(list(FILES)), document=_json)
def test_no_document_raises(home: Path, tool: str, document: object) -> None:
    path = FILES[tool](home, URL, "client-1", "access-1", "refresh-1")
    path.write_text(json.dumps(document))
    for login in find(home).logins[URL]:
        assert login.access_token
        assert login.client_id
