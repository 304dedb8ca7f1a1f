"""Taking over logins that other programs hold, with a real daemon and mcpctl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.auth.foreign_files import FILES
from tests.e2e.conftest import Start
from tests.e2e.harness import Daemon
from tests.e2e.test_login import mcpctl, needs_login, served
from tests.fakes.authorization_server import AuthorizationServer


def issue(server: AuthorizationServer, name: str) -> tuple[str, str, str]:
    """Return client ID, access token, and refresh token of a login that another program has made."""
    server.clients[f"client-{name}"] = {"redirect_uris": ["http://localhost:3334/oauth/callback"]}
    server.refresh_tokens[f"refresh-held-{name}-secret"] = f"client-{name}"
    return f"client-{name}", f"access-held-{name}-secret", f"refresh-held-{name}-secret"


def home(daemon: Daemon) -> Path:
    return Path(daemon.environ["HOME"])


@pytest.mark.parametrize("tool", FILES)
def test_t22_a_login_is_taken_over_and_the_file_stays_as_it_is(start: Start, tool: str) -> None:
    """A renewal proves it, as the client that the other program had registered."""
    with served() as server:
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        path = FILES[tool](home(daemon), server.url, *issue(server, "1"))
        before = path.read_bytes()
        with daemon.client() as client:
            found = client.request("mcpd/auth/adopt", dry_run=True)["found"]
            assert [(each["tool"], each["outcome"]) for each in found] == [(tool, "found")]
            assert server.token_requests == []
            result = client.request("mcpd/auth/adopt", server="remote", tool=tool)
            (adopted,) = result["found"]
            assert (adopted["outcome"], adopted["replaced"], adopted["removed"]) == ("adopted", True, False)
            daemon.wait_connected("remote")
            client.call("remote", "echo")
            (again,) = client.request("mcpd/auth/adopt")["found"]
            assert (again["outcome"], again["reason"]) == ("skipped", "mcpd is logged in already")
        (renewal,) = server.token_requests
        assert renewal["grant_type"] == "refresh_token"
        assert renewal["client_id"] == "client-1"
        assert path.read_bytes() == before
        assert server.asked("/register") == []
        assert "-secret" not in daemon.log + json.dumps(result)


def test_mcpctl_shows_what_it_finds_and_asks_first(start: Start) -> None:
    with served() as server:
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        code, text = mcpctl(daemon, "auth", "adopt")
        assert (code, text) == (0, "no other program holds a login for these servers\n")
        path = FILES["codex"](home(daemon), server.url, *issue(server, "1"))
        code, text = mcpctl(daemon, "auth", "adopt", "--dry-run")
        assert code == 0
        assert f"remote: a login held by codex in {path}" in text
        assert "next: mcpctl auth adopt" in text
        code, text = mcpctl(daemon, "auth", "adopt", "remote")
        assert (code, "mcpctl auth adopt remote --yes" in text) == (2, True), text
        assert server.token_requests == []
        code, text = mcpctl(daemon, "auth", "adopt", "remote", "--from", "codex", "--yes", "--remove")
        assert code == 0, text
        assert "it was deleted there" in text
        assert json.loads(path.read_text()) == {}
        daemon.wait_connected("remote")


def test_a_login_that_does_not_work_stays_with_the_other_program(start: Start, tmp_path: Path) -> None:
    """Also if it cannot be renewed, or the file is damaged."""
    with served() as server:
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        client, access, refresh = issue(server, "1")
        path = FILES["opencode"](home(daemon), server.url, client, access, "refresh-unknown")
        FILES["gemini-cli"](home(daemon), server.url, client, access, "a damaged token")
        (home(daemon) / ".codex").mkdir()
        (home(daemon) / ".codex" / ".credentials.json").write_text("{")
        before = path.read_bytes()
        code, text = mcpctl(daemon, "auth", "adopt", "--yes", "--remove")
        assert code == 4
        assert "does not accept its refresh token" in text
        assert "is damaged" in text
        assert ".credentials.json is not JSON" in text
        assert path.read_bytes() == before
        assert json.loads((tmp_path / "state/mcpd/login/logins.json").read_text())["logins"] == {}
        needs_login(daemon)
        server.answers["/token"] = (503, b"")
        FILES["opencode"](home(daemon), server.url, client, access, refresh)
        code, text = mcpctl(daemon, "auth", "adopt", "remote", "--from", "opencode", "--yes", "--remove")
        assert (code, "503" in text) == (4, True), text
        del server.answers["/token"]
        code, text = mcpctl(daemon, "auth", "adopt", "remote", "--from", "opencode", "--yes")
        assert code == 0, text
        daemon.wait_connected("remote")


def test_of_several_logins_the_one_that_expires_last_is_taken(start: Start) -> None:
    with served() as server:
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        FILES["mcporter"](home(daemon), server.url, *issue(server, "1"))
        FILES["claude-code"](home(daemon), server.url, *issue(server, "2"))
        with daemon.client() as client:
            found = client.request("mcpd/auth/adopt")["found"]
        assert [(each["tool"], each["outcome"]) for each in found] == [
            ("claude-code", "adopted"),
            ("mcporter", "skipped"),
        ]
        assert [form["client_id"] for form in server.token_requests] == ["client-2"]


def test_the_issuer_in_another_program_s_file_is_not_believed(start: Start) -> None:
    """Tokens go only where the server's own metadata says."""
    with served() as server, served() as evil:
        daemon = start({"remote": {"url": server.url}})
        needs_login(daemon)
        path = FILES["gemini-cli"](home(daemon), server.url, *issue(server, "1"))
        document = json.loads(path.read_text())
        document[0]["tokenUrl"] = f"{evil.origin}/token"
        path.write_text(json.dumps(document))
        with daemon.client() as client:
            (adopted,) = client.request("mcpd/auth/adopt")["found"]
        assert adopted["outcome"] == "adopted"
        assert evil.http.requests == []
