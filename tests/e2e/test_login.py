"""Logging in with mcpctl: the daemon, mcpctl and the loopback listener are real."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon, Refused, command_lines, recorded_notifications, wait_until
from tests.e2e.login_people import logged_in, needs_login, open_page, remote, served, visit
from tests.e2e.web import PORT

__all__ = ["logged_in", "needs_login", "open_page", "served", "visit"]


def start_mcpctl(
    daemon: Daemon, *argv: str, cwd: Path | None = None, **environ: str
) -> subprocess.Popen[str]:
    without_browser = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": "", "SSH_CONNECTION": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "ctl", *argv],
        env={**daemon.environ, **without_browser, "MCPD_SOCKET": daemon.socket, **environ},
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def mcpctl(daemon: Daemon, *argv: str, cwd: Path | None = None) -> tuple[int, str]:
    process = start_mcpctl(daemon, *argv, cwd=cwd)
    out, err = process.communicate(timeout=BOUND)
    return process.returncode, out + err


def test_a_login_connects_the_server_and_survives_a_restart(start: Start) -> None:
    with remote(start) as (server, daemon):
        _, text = mcpctl(daemon, "status", "remote")
        assert "mcpctl login remote" in text
        login = start_mcpctl(daemon, "login", "remote", "--no-browser")
        assert login.stdout is not None
        page = open_page(visit(login.stdout.readline().strip()))
        out, err = login.communicate(timeout=BOUND)
        assert login.returncode == 0, err
        assert "You can close this page" in page
        assert "logged in" in out
        assert "connected" in out
        assert daemon.status("remote")["status"] == "connected"
        daemon.stop()
        asked = len(server.token_requests)
        again = start({"remote": {"url": server.url}})
        again.wait_connected("remote")
        assert len(server.token_requests) == asked


def test_t19_a_pasted_address_and_the_line_for_ssh(start: Start) -> None:
    with remote(start) as (_, daemon):
        ssh = "192.0.2.1 50000 192.0.2.2 22"
        login = start_mcpctl(daemon, "login", "remote", "--paste", SSH_CONNECTION=ssh)
        assert login.stdout is not None
        assert login.stdin is not None
        url = login.stdout.readline().strip()
        forward = login.stdout.readline()
        assert "ssh -L " in forward
        assert "@192.0.2.2" in forward
        print("a code alone", file=login.stdin, flush=True)
        print(visit(url), file=login.stdin, flush=True)
        out, err = login.communicate(timeout=BOUND)
        assert login.returncode == 0, err
        assert "whole address" in err
        assert "logged in" in out


def test_auth_shows_and_renews_a_login_and_no_token(start: Start) -> None:
    with remote(start) as (server, daemon):
        code, text = mcpctl(daemon, "auth", "status", "remote")
        assert code == 4
        assert "mcpctl login remote" in text
        logged_in(daemon)
        code, text = mcpctl(daemon, "auth", "list")
        assert code == 0
        assert server.origin in text
        code, text = mcpctl(daemon, "auth", "refresh", "remote")
        assert code == 0, text
        assert [form["grant_type"] for form in server.token_requests][-1] == "refresh_token"
        for words in (("auth", "status", "remote"), ("auth", "list", "--json"), ("debug", "remote")):
            code, text = mcpctl(daemon, *words)
            assert code == 0
            assert "-secret" not in text


def test_explain_shows_every_step_and_changes_nothing(start: Start) -> None:
    with remote(start) as (server, daemon):
        code, text = mcpctl(daemon, "auth", "explain", "remote")
        assert code == 0, text
        assert "oauth-protected-resource/mcp" in text
        assert "registered by itself as mcpd" in text
        assert server.asked("/register") == []
        assert server.metadata is not None
        server.metadata["issuer"] = "https://evil.example"
        code, text = mcpctl(daemon, "auth", "explain", "remote")
        assert code == 4
        assert "https://evil.example" in text


@pytest.mark.parametrize("wanted", [True, False])
def test_the_end_of_a_login_is_a_notification_unless_it_is_switched_off(
    start: Start, tmp_path: Path, wanted: bool
) -> None:
    """One, however many calls fail, and none for a server that nobody has logged in to."""
    shown, environ = recorded_notifications(tmp_path)
    with served() as server:
        settings = {} if wanted else {"loginNotifications": False}
        daemon = start({"remote": {"url": server.url}}, environ=environ, settings=settings)
        needs_login(daemon)
        logged_in(daemon)
        server.access_tokens.clear()
        server.refresh_tokens.clear()
        with daemon.client() as client:
            for _ in range(5):
                with pytest.raises(Refused, match="mcpctl login remote"):
                    client.call("remote", "echo")
            entries = client.request("mcpd/history", server="remote")["entries"]
            assert any("needed again" in each["message"] for each in entries)
        if wanted:
            wait_until(lambda: "login needed" in shown.read_text(), lambda: daemon.log)
        daemon.stop()
        assert len(shown.read_text().splitlines()) == (2 if wanted else 0)  # a title, and two lines of text
        assert "mcpctl login remote" in shown.read_text() or not wanted


class _AnyUri(list[str]):
    def __contains__(self, uri: object) -> bool:
        return True


def test_t15_no_secret_of_any_kind_is_shown_anywhere(start: Start, tmp_path: Path) -> None:
    """Neither in the log at the level debug, nor in taps, traces, bundles, states, events, or processes."""
    with served() as server:
        client_secret = "client-canary-of-the-definition"
        server.clients["preregistered"] = {"redirect_uris": _AnyUri()}
        oauth = {"clientId": "preregistered", "clientSecret": client_secret}
        daemon = start({"remote": {"url": server.url, "debug": True, "oauth": oauth}}, "--debug", *PORT)
        needs_login(daemon)
        shown = []
        with daemon.client() as tap, daemon.client() as client:
            tap.send("mcpd/tap", server="remote")
            logged_in(daemon)
            client.call("remote", "echo")
            server.access_tokens.clear()
            client.call("remote", "echo")
            client.request("mcpd/auth/refresh", server="remote")
            server.nonce = None
            server.answers["/token"] = (500, b"access-in-an-error-secret")
            server.access_tokens.clear()
            with pytest.raises(Refused):
                client.call("remote", "echo")
            del server.answers["/token"]
            for method, params in (
                ("mcpd/status", {}),
                ("mcpd/server", {"server": "remote"}),
                ("mcpd/auth/status", {}),
                ("mcpd/auth/explain", {"server": "remote"}),
                ("mcpd/history", {}),
                ("mcpd/metrics", {}),
                ("mcpd/logs", {"server": "remote"}),
                ("mcpd/config", {}),
            ):
                shown.append(json.dumps(client.request(method, **params)))
            while not any("tools/call" in json.dumps(each) for each in tap.notifications):
                tap._take(tap.read_line())
            shown.append(json.dumps(tap.notifications))
        for argv in (
            ("debug", "remote"),
            ("auth", "status"),
            ("why", "remote"),
            ("doctor", "--bundle", "b.tgz"),
        ):
            shown.append(mcpctl(daemon, *argv, cwd=tmp_path)[1])
        with tarfile.open(tmp_path / "b.tgz") as bundle:
            for member in bundle.getmembers():
                file = bundle.extractfile(member)
                assert file is not None
                shown.append(file.read().decode("utf-8", "replace"))
        shown.append(command_lines(daemon))
        for path in (tmp_path / "state").rglob("*"):
            if path.is_file() and path.name not in ("logins.json", "last-valid-config.json"):
                shown.append(path.read_text("utf-8", "replace"))
        shown.append(daemon.log)
        text = "\n".join(shown)
        canaries = {client_secret, *server.granted, *server.refresh_tokens}
        for form in server.token_requests:
            canaries |= {form[name] for name in ("code", "code_verifier", "refresh_token") if name in form}
        for request in server.asked("/authorize"):
            query = dict(parse_qsl(urlsplit(request.path).query))
            canaries |= {query["state"], query["code_challenge"]}
        assert len(canaries) >= 10
        assert [each for each in canaries if each in text] == []
        assert "in-an-error-secret" not in text
