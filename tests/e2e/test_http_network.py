"""A port for other machines: TLS, access tokens of people, and what each of them may use."""

from __future__ import annotations

import datetime
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from joserfc.jwk import ECKey, OctKey

from tests.e2e.harness import BOUND, Daemon, Json, fake, in_flight, running, wait_until
from tests.e2e.issuer import AUDIENCE, KEY, OTHER_KEY, Issuer, running_issuer
from tests.e2e.web import BOTH, Session, ask
from tests.stopwatch import stopwatch, within


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


def make_certificate(directory: Path) -> Json:
    """Write a certificate for `localhost` that signs itself, and return the setting `tls`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / "key.pem").write_bytes(key.private_bytes(kind, form, serialization.NoEncryption()))
    return {"certificate": str(directory / "cert.pem"), "key": str(directory / "key.pem")}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Daemon]:
    home = tmp_path_factory.mktemp("daemon")
    settings = {
        "http": {
            "listen": "0.0.0.0:0",
            "tls": make_certificate(home),
            "jwt": {"issuer": issuer.url, "audience": AUDIENCE},
            "profiles": {"admins": "*", "staff": "small"},
        },
        "profiles": {"small": {"servers": ["one"]}},
        "policies": [
            {"decision": "deny", "people": ["mallory"], "tools": ["echo"]},
            {"decision": "deny", "groups": ["staff"], "tools": ["counts"]},
        ],
    }
    with running(home, {"one": fake(), "two": fake()}, settings=settings) as daemon:
        daemon.wait_connected("one", "two")
        with client(daemon) as http:
            wait_until(lambda: http.get("/readyz").status_code == 200, lambda: daemon.log)
        yield daemon


def client(daemon: Daemon, token: str = "", **headers: str) -> httpx.Client:
    with daemon.client() as control:
        port = int(control.request("mcpd/status")["daemon"]["http"]["url"].split(":")[2].partition("/")[0])
    context = ssl.create_default_context(cafile=str(daemon.home / "cert.pem"))
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(
        base_url=f"https://localhost:{port}",
        verify=context,
        headers={"Accept": BOTH, **bearer, **headers},
        timeout=BOUND,
    )


def tools(http: httpx.Client, path: str = "/mcp") -> set[str]:
    return {
        tool["name"].partition("__")[0] for tool in ask(http, path, "tools/list").json()["result"]["tools"]
    }


def test_person_uses_the_profile_of_the_group(daemon: Daemon, issuer: Issuer) -> None:
    with client(daemon, issuer.token(groups=["staff"])) as http:
        assert tools(http) == {"one"}
        assert tools(http, "/mcp/small") == {"one"}
        assert ask(http, "/servers/two/mcp", "tools/list").status_code == 403
        assert http.get("/metrics").status_code == 403
        assert http.post("/rpc", json={}).status_code == 426
        assert http.get("/").status_code == 404
    with client(daemon, issuer.token("eve", groups=["admins"])) as http:
        assert tools(http) == {"one", "two"}
        assert "echo" in tools(http, "/servers/two/mcp")
    with client(daemon, issuer.token("guest")) as http:
        assert ask(http, "/mcp", "tools/list").status_code == 403


def test_policies_and_the_call_log_know_the_person(daemon: Daemon, issuer: Issuer) -> None:
    """The name that a client reports counts for nothing, and so does the connection, which may be a
    balancer's."""
    ada, mallory = issuer.token("ada", groups=["admins"]), issuer.token("mallory", groups=["admins"])
    staff = issuer.token("bob", groups=["staff"])
    with client(daemon) as http:
        texts = {}
        for name, token, tool in (
            ("ada", ada, "one__echo"),
            ("mallory", mallory, "one__echo"),
            ("bob", staff, "one__counts"),
            ("again", ada, "one__echo"),
        ):
            http.headers["Authorization"] = f"Bearer {token}"
            texts[name] = ask(http, "/mcp", "tools/call", name=tool, arguments={"n": 1}).text
    assert "denies it" in texts["mallory"]
    assert "denies it" in texts["bob"]
    assert "denies it" not in texts["ada"] + texts["again"]

    def logged() -> list[tuple[str, str]]:
        with daemon.client() as control:
            calls = control.request("mcpd/calls")["calls"]
        return [(call.get("person", ""), call["outcome"]) for call in calls]

    wait_until(lambda: {("ada", "ok"), ("mallory", "denied")} <= set(logged()), lambda: str(logged()))


def test_session_belongs_to_the_person(daemon: Daemon, issuer: Issuer) -> None:
    with client(daemon, issuer.token("ada", groups=["admins"])) as http:
        session = Session(http)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert http.post("/mcp", json=ping, headers=session.headers).status_code == 200
        http.headers["Authorization"] = f"Bearer {issuer.token('eve', groups=['admins'])}"
        assert http.post("/mcp", json=ping, headers=session.headers).status_code == 404


@pytest.mark.parametrize(
    ("claims", "key"),
    [
        ({"aud": "https://localhost/other"}, KEY),
        ({"iss": "https://evil.example"}, KEY),
        ({"exp": time.time() - 3600}, KEY),
        ({"exp": None}, KEY),
        ({"nbf": time.time() + 3600}, KEY),
        ({"sub": None}, KEY),
        ({"sub": "ada\nSet-Cookie: a"}, KEY),
        ({}, OTHER_KEY),
        ({}, ECKey.generate_key("P-256", parameters={"kid": "one"})),
        ({}, OctKey.import_key("a secret that everybody knows, as the public key is")),
    ],
)
def test_other_token_is_refused(daemon: Daemon, issuer: Issuer, claims: Json, key: Any) -> None:
    with client(daemon, issuer.token(key=key, **{"groups": ["admins"], **claims})) as http:
        answer = ask(http, "/mcp", "tools/list")
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "." * 20_000, "eyJhbGciOiJub25lIn0.e30."])
def test_request_without_a_token_learns_where_to_log_in(daemon: Daemon, issuer: Issuer, token: str) -> None:
    with client(daemon, token) as http:
        answer = ask(http, "/mcp", "tools/list")
        assert answer.status_code == 401
        url = answer.headers["www-authenticate"].partition('resource_metadata="')[2].partition('"')[0]
        metadata = http.get(url).json()
    assert metadata["authorization_servers"] == [issuer.url]
    assert metadata["resource"] == str(http.base_url.join("/mcp"))


def test_web_page_and_other_names_are_refused(daemon: Daemon, issuer: Issuer) -> None:
    token = issuer.token(groups=["admins"])
    with client(daemon, token, Origin="https://evil.example") as http:
        assert ask(http, "/mcp", "tools/list").status_code == 403
    with client(daemon, token, Host="evil.example") as http:
        assert ask(http, "/mcp", "tools/list").status_code == 403


def test_token_of_mcpd_is_that_of_the_person_who_runs_it(daemon: Daemon) -> None:
    with daemon.client() as control:
        file = control.request("mcpd/status")["daemon"]["http"]["token_file"]
    with client(daemon, Path(file).read_text().strip()) as http:
        assert tools(http) == {"one", "two"}
        assert http.get("/metrics").status_code == 200


def test_new_key_is_fetched_when_a_token_names_it(daemon: Daemon, issuer: Issuer) -> None:
    issuer.keys = [KEY, OTHER_KEY]
    with client(daemon, issuer.token(key=OTHER_KEY, groups=["admins"])) as http:
        wait_until(lambda: ask(http, "/mcp", "tools/list").status_code == 200, lambda: daemon.log)


def test_unusable_certificate_affects_the_port_only(tmp_path: Path) -> None:
    """Neither at the start nor after a renewal does it end the daemon, and `status` tells of both."""
    tls = make_certificate(tmp_path)
    usable = (tmp_path / "cert.pem").read_bytes()
    (tmp_path / "cert.pem").write_text("no certificate")
    http = {"listen": "127.0.0.1:0", "tls": tls}
    with running(tmp_path, {"one": fake()}, settings={"http": http}) as daemon, daemon.client() as control:
        daemon.wait_connected("one")
        for _ in range(2):  # what the first attempt has opened is not in the way of the next one
            status = control.request("mcpd/status")
            (warning,) = status["config"]["warnings"]
            assert f"cannot use {tls['certificate']} with {tls['key']}" in warning
            assert status["daemon"]["http"] is None
            control.request("mcpd/reload")
        (tmp_path / "cert.pem").write_bytes(usable)
        control.request("mcpd/reload")
        assert not control.request("mcpd/status")["config"].get("warnings")
        (tmp_path / "key.pem").write_text("no key")
        (warning,) = control.request("mcpd/status")["daemon"]["warnings"]
        assert "the old certificate is used" in warning
        with client(daemon) as other:
            assert other.get("/readyz").status_code == 200
        make_certificate(tmp_path)
        assert not control.request("mcpd/status")["daemon"].get("warnings")
        with client(daemon) as other:
            assert other.get("/readyz").status_code == 200


def test_daemon_that_stops_finishes_its_calls(tmp_path: Path) -> None:
    """A balancer sees first that it must send requests elsewhere."""
    http = {"listen": "127.0.0.1:0", "tls": make_certificate(tmp_path)}
    with running(tmp_path, {"one": fake()}, settings={"http": http}) as daemon:
        daemon.wait_connected("one")
        token = (tmp_path / "state" / "mcpd" / "http-token").read_text().strip()
        with client(daemon, token) as waiting, client(daemon, token) as other:
            outcome: list[httpx.Response] = []
            call = threading.Thread(
                target=lambda: outcome.append(
                    ask(waiting, "/mcp", "tools/call", name="one__late", arguments={"seconds": 3})
                )
            )
            call.start()
            in_flight(daemon, "one", 1)
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: other.get("/readyz").status_code == 503, lambda: daemon.log)
            assert other.get("/livez").status_code == 200
            assert ask(other, "/mcp", "tools/call", name="one__echo").status_code == 200
            call.join(BOUND)
            assert "error" not in outcome[0].json()
        assert daemon.process.wait(BOUND) == 0


def test_groups_of_a_new_token_end_the_session(daemon: Daemon, issuer: Issuer) -> None:
    """A person may use several tokens on one connection, which is not counted as several clients for ever."""
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    with daemon.client() as control, client(daemon, issuer.token("kim", groups=["admins"])) as http:
        session = Session(http)
        assert http.post("/mcp", json=ping, headers=session.headers).status_code == 200
        http.headers["Authorization"] = f"Bearer {issuer.token('kim', groups=['staff'])}"
        assert http.post("/mcp", json=ping, headers=session.headers).status_code == 404
        for number in range(100):
            token = issuer.token("kim", groups=["admins", f"g{number}"])
            http.headers["Authorization"] = f"Bearer {token}"
            assert tools(http) == {"one", "two"}
        assert len(control.request("mcpd/clients")["clients"]) < 40


def test_token_that_expires_ends_the_use_of_each_path(daemon: Daemon, issuer: Issuer) -> None:
    """Also on a connection that repeats its requests."""
    token = issuer.token(groups=["admins"], exp=int(time.time()) - 57)  # the clocks may differ by 60 s
    with client(daemon, token) as http:
        assert http.get("/metrics").status_code == 403
        wait_until(lambda: http.get("/metrics").status_code == 401, lambda: daemon.log)
        assert ask(http, "/mcp", "tools/list").status_code == 401


def test_handshakes_that_stall_make_nobody_wait(daemon: Daemon, issuer: Issuer) -> None:
    with client(daemon, issuer.token(groups=["admins"])) as http, ExitStack() as stack:
        address = ("127.0.0.1", http.base_url.port)
        for _ in range(600):
            stack.enter_context(socket.create_connection(address, timeout=BOUND))
        with stopwatch() as watch:
            assert tools(http) == {"one", "two"}
        assert within(watch.seconds, 5.0)
