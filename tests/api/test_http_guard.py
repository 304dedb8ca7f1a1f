"""Programs with the token are admitted; web pages are refused, whatever their Host and Origin."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mcpd.api.http.guard import TcpGuard, UnixGuard, load_token
from mcpd.api.http.parser import MAX_BODY, Admission, BadRequest, Head
from mcpd.files.paths import UnusablePath

TOKEN = "t" * 43
GUARD = TcpGuard(8931, TOKEN, {"/health": 0, "/page/session": 1024})
OPEN = TcpGuard(8931, None, {"/health": 0, "/page/session": 1024})
RIGHT = {"host": "127.0.0.1:8931", "authorization": f"Bearer {TOKEN}"}


def head(path: str = "/mcp", **headers: str | None) -> Head:
    given = {
        name.replace("_", "-").encode(): text.encode() for name, text in headers.items() if text is not None
    }
    return Head("POST", path, "", given, frozenset(), True, True)


def status(guard: TcpGuard | UnixGuard, request: Head) -> int:
    try:
        guard.admit(request)
    except BadRequest as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "localhost:8931"},
        {"host": "[::1]:8931"},
        {"origin": "http://127.0.0.1:8931"},
        {"authorization": f"bearer  {TOKEN}"},
        {"sec_fetch_site": "same-origin"},
    ],
)
def test_program_with_the_token_is_admitted(headers: dict[str, str]) -> None:
    assert status(GUARD, head("/mcp", **{**RIGHT, **headers})) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": None},
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:80"},
        {"host": "evil.example:8931"},
        {"host": "localhost.evil.example:8931"},
        {"host": "0.0.0.0:8931"},
        {"host": "[::ffff:127.0.0.1]:8931"},
        {"host": "127.0.0.1:8931@evil.example"},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "https://127.0.0.1:8931"},
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
@pytest.mark.parametrize("guard", [GUARD, OPEN], ids=["token", "no token"])
def test_web_page_is_refused_even_with_the_token(guard: TcpGuard, headers: dict[str, str | None]) -> None:
    """With DNS rebinding the browser treats the page as same-origin, but the Host header names it."""
    assert status(guard, head("/mcp", **{**RIGHT, **headers})) == 403


@pytest.mark.parametrize(
    "authorization",
    [None, "", TOKEN, "Bearer", f"Basic {TOKEN}", "Bearer " + TOKEN[:-1], f"Bearer {TOKEN}t", "Bearer é"],
)
def test_request_without_the_token_is_refused(authorization: str | None) -> None:
    """The 401 response names the scheme but no OAuth metadata."""
    request = head("/mcp", **{**RIGHT, "authorization": authorization})
    with pytest.raises(BadRequest) as refusal:
        GUARD.admit(request)
    assert refusal.value.status == 401
    assert refusal.value.headers == b'WWW-Authenticate: Bearer realm="mcpd"\r\n'
    assert status(OPEN, request) == 200


def test_open_paths_need_no_token_but_refuse_web_pages() -> None:
    """Paths below /.well-known return 404 instead of 401; otherwise clients would start OAuth."""
    for path in ("/health", "/.well-known/oauth-protected-resource/mcp"):
        assert status(GUARD, head(path, host="127.0.0.1:8931")) == 200
        assert status(GUARD, head(path, host="evil.example:8931")) == 403


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/health", Admission(0, False)),
        ("/.well-known/x", Admission(0, False)),
        ("/page/session", Admission(1024, False)),
        ("/mcp", Admission(MAX_BODY, True)),
    ],
)
def test_open_paths_take_no_body_or_a_small_one(path: str, expected: Admission) -> None:
    """Even with the token, so that nothing depends on the order of the checks."""
    assert GUARD.admit(head(path, **RIGHT)) == expected
    assert OPEN.admit(head(path, **RIGHT)) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"host": "mcpd"}, 200),
        ({"host": "localhost", "origin": "http://localhost"}, 403),
        ({"host": "localhost", "origin": "http://evil.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
    ],
)
def test_unix_socket_needs_no_token_but_refuses_web_pages(headers: dict[str, str], expected: int) -> None:
    assert status(UnixGuard(), head("/mcp", **headers)) == expected


def test_token_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "state" / "http-token"
    token = load_token(file)
    assert len(token) >= 43  # 256 bits
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_token(file) == token


@pytest.mark.parametrize(
    ("content", "mode"), [("x" * 43, 0o644), ("short", 0o600), ("", 0o600), ("é" * 43, 0o600)]
)
def test_exposed_or_weak_token_is_refused(tmp_path: Path, content: str, mode: int) -> None:
    file = tmp_path / "http-token"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(UnusablePath, match="http-token"):
        load_token(file)


def test_symbolic_link_is_not_accepted_as_token_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x" * 43)
    os.symlink("a", tmp_path / "http-token")
    with pytest.raises(UnusablePath):
        load_token(tmp_path / "http-token")
