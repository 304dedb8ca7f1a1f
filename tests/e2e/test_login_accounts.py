"""Clients of a definition, and several accounts, with a real daemon and mcpctl."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import parse_qsl

from mcpd.auth.keys import new_key
from tests.e2e.conftest import Start
from tests.e2e.harness import BOUND, Daemon
from tests.e2e.login_people import logged_in_remote
from tests.e2e.test_login import logged_in, mcpctl, needs_login, open_page, served, start_mcpctl, visit
from tests.interop.peers import free_port


def test_a_key_signs_the_login_its_renewal_and_its_revocation(start: Start, tmp_path: Path) -> None:
    """`private_key_jwt` (RFC 7523): every request has an assertion of its own for the issuer."""
    key = tmp_path / "key.pem"
    key.write_text(new_key())
    redirect_uri = f"http://127.0.0.1:{free_port()}/callback"
    with served() as server:
        assert server.metadata is not None
        server.metadata["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]
        server.clients["mine"] = {"redirect_uris": [redirect_uri]}
        oauth = {
            "clientId": "mine",
            "privateKey": f"${{file:{key}}}",
            "redirectUri": redirect_uri,
        }
        daemon = start({"remote": {"url": server.url, "oauth": oauth}})
        needs_login(daemon)
        logged_in(daemon)
        code, text = mcpctl(daemon, "auth", "refresh", "remote")
        assert code == 0, text
        code, text = mcpctl(daemon, "logout", "remote")
        assert "has revoked the tokens" in text
        revocation = dict(parse_qsl(server.asked("/revoke")[0].body.decode()))
        seen = set()
        for form in (*server.token_requests, revocation):
            claims = json.loads(base64.urlsafe_b64decode(form["client_assertion"].split(".")[1] + "=="))
            assert (claims["iss"], claims["sub"], claims["aud"]) == ("mine", "mine", server.origin)
            seen.add(claims["jti"])
        assert len(seen) == 3


def log_in(daemon: Daemon, *argv: str) -> str:
    """Run `mcpctl login` as a person with a browser; return what it printed."""
    login = start_mcpctl(daemon, "login", *argv, "--no-browser")
    assert login.stdout is not None
    open_page(visit(login.stdout.readline().strip()))
    out, err = login.communicate(timeout=BOUND)
    assert login.returncode == 0, err
    return out + err


def logins_file(tmp_path: Path) -> str:
    return (tmp_path / "state" / "mcpd" / "login" / "logins.json").read_text()


def test_two_accounts_of_one_server_have_separate_logins(start: Start, tmp_path: Path) -> None:
    """A definition chooses by its member `account`. The logins are listed, renewed, and ended one by one."""
    with served() as server:
        work = {"url": server.url, "oauth": {"account": "work"}}
        daemon = start({"remote": {"url": server.url}, "remote-work": work})
        needs_login(daemon)
        assert "connected" in log_in(daemon, "remote")
        daemon.wait_status("remote-work", lambda status: status["status"] == "needs-auth")
        assert "connected" in log_in(daemon, "remote-work")
        code, text = mcpctl(daemon, "auth", "list", "--json")
        assert {(each["account"], *each["servers"]) for each in json.loads(text)["logins"]} == {
            ("default", "remote"),
            ("work", "remote-work"),
        }
        tokens = {}
        for name in ("remote", "remote-work"):
            with daemon.client() as client:
                client.call(name, "echo")
            tokens[name] = server.http.requests[-1].headers["authorization"]
        assert tokens["remote"] != tokens["remote-work"]
        code, text = mcpctl(daemon, "auth", "refresh", "remote-work")
        assert (code, "(account work)" in text) == (0, True), text
        assert mcpctl(daemon, "logout", "remote-work")[0] == 0
        daemon.wait_status("remote-work", lambda status: status["status"] == "needs-auth")
        assert daemon.status("remote")["status"] == "connected"
        code, text = mcpctl(daemon, "auth", "refresh", "remote-work")
        assert (code, "mcpctl login remote-work" in text) == (4, True), text
        log_in(daemon, "remote-work")
        before = len(server.asked("/revoke"))
        code, text = mcpctl(daemon, "logout", "--all")
        assert (code, len(text.splitlines())) == (0, 2)
        assert len(server.asked("/revoke")) == before + 2
        daemon.wait_status("remote", lambda status: status["status"] == "needs-auth")
        assert mcpctl(daemon, "logout", "--all") == (0, "nobody is logged in\n")
        assert json.loads(logins_file(tmp_path))["logins"] == {}
        for words in (("logout",), ("logout", "remote", "--all")):
            assert mcpctl(daemon, *words)[0] == 2


def test_a_new_server_that_uses_an_existing_login_says_so(start: Start) -> None:
    with logged_in_remote(start) as (server, daemon):
        code, text = mcpctl(daemon, "add", "same", server.url)
        assert code == 0, text
        assert f"same: uses the existing login of remote at {server.origin}" in text
        code, text = mcpctl(daemon, "add", "own", server.url, "--header", "Authorization=x")
        assert "existing login" not in text


def test_results_of_an_earlier_login_are_not_used_after_another(start: Start) -> None:
    """It may be one with another account."""
    with served() as server:
        server.tool = {"annotations": {"readOnlyHint": True}}
        daemon = start({"remote": {"url": server.url, "cache": {"echo": "1h"}}})
        needs_login(daemon)
        logged_in(daemon)
        with daemon.client() as client:
            client.call("remote", "echo")
            client.call("remote", "echo")
            assert server.calls() == 1
            logged_in(daemon)
            client.call("remote", "echo")
            assert server.calls() == 2


def test_a_client_named_at_the_login_is_remembered_and_its_secret_is_not_stored(
    start: Start, tmp_path: Path
) -> None:
    """Also after a restart, and for the next login; the secret stays in the secret store."""
    port = str(free_port())
    with served() as server:
        server.clients["mine"] = {"redirect_uris": [f"http://localhost:{port}/callback"]}
        definition = {"remote": {"url": server.url}}
        daemon = start(definition)
        needs_login(daemon)
        named = ("--client-id", "mine", "--client-secret", "REMOTE_CLIENT", "--callback-port", port)
        code, text = mcpctl(daemon, "login", "remote", *named)
        assert (code, "REMOTE_CLIENT" in text) == (4, True), text
        code, text = mcpctl(daemon, "login", "remote", "--client-secret", "REMOTE_CLIENT")
        assert (code, "requires a client ID" in text) == (4, True), text
        stored = start_mcpctl(daemon, "secret", "set", "REMOTE_CLIENT")
        stored.communicate("client-canary\n", timeout=BOUND)
        assert stored.returncode == 0
        log_in(daemon, "remote", *named)
        daemon.stop()
        again = start(definition)
        again.wait_connected("remote")
        code, text = mcpctl(again, "auth", "refresh", "remote")
        assert code == 0, text
        log_in(again, "remote")
        proved = [base64.b64decode(each.headers["authorization"][6:]) for each in server.asked("/token")]
        assert proved == [b"mine:client-canary"] * 3
        assert server.asked("/register") == []
        assert "client-canary" not in logins_file(tmp_path) + again.log + daemon.log


def test_all_servers_are_logged_in_to_one_after_the_other(start: Start) -> None:
    """A login that several servers share is asked for once, and a failure does not stop the others."""
    with served() as one, served() as other, served() as broken:
        broken.answers["/register"] = (403, b'{"error":"access_denied"}')
        servers = {"broken": broken.url, "remote": one.url, "same": one.url, "third": other.url}
        daemon = start({name: {"url": url} for name, url in servers.items()})
        for name in servers:
            daemon.wait_status(name, lambda status: status["status"] == "needs-auth")
        login = start_mcpctl(daemon, "login", "--all", "--no-browser")
        assert login.stdout is not None
        found = ""
        while line := login.stdout.readline():
            found += line
            if line.startswith("http"):
                open_page(visit(line.strip()))
        _, err = login.communicate(timeout=BOUND)
        assert login.returncode == 4, err
        assert "did not register mcpd" in err
        for name in ("remote", "same", "third"):
            assert f"{name}: connected" in found, found + err
        assert (len(one.asked("/authorize")), len(other.asked("/authorize"))) == (1, 1)
        del broken.answers["/register"]
        log_in(daemon, "broken")
        assert mcpctl(daemon, "login", "--all") == (0, "no server needs a login\n")


def test_logins_can_be_encrypted_with_a_systemd_credential(start: Start, tmp_path: Path) -> None:
    """A plain file is encrypted when the daemon starts. Without the credential, nobody is logged in."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "mcpd-logins").write_bytes(b"k" * 64)
    settings, environ = {"loginStorage": "credential"}, {"CREDENTIALS_DIRECTORY": str(credentials)}
    with logged_in_remote(start) as (server, daemon):
        assert "-secret" in logins_file(tmp_path)
        daemon.stop()
        encrypted = start({"remote": {"url": server.url}}, settings=settings, environ=environ)
        encrypted.wait_connected("remote")
        assert "-secret" not in logins_file(tmp_path)
        code, text = mcpctl(encrypted, "auth", "refresh", "remote")
        assert code == 0, text
        assert "-secret" not in logins_file(tmp_path)
        encrypted.stop()
        without = start({"remote": {"url": server.url}}, settings=settings)
        needs_login(without)
        code, text = mcpctl(without, "auth", "list")
        assert "systemd has not provided any credentials to mcpd" in text
        without.stop()
        start({"remote": {"url": server.url}}, settings=settings, environ=environ).wait_connected("remote")
