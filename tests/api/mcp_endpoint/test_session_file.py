"""The file in which HTTP sessions outlive the daemon."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import msgspec
import pytest
import trio
from msgspec import Raw

from mcpd.api.mcp import kept_sessions
from mcpd.api.mcp.kept_sessions import KeptSession, SessionFile, hashed


def session(name: str, used_at: float = 0.0, uris: int = 0) -> KeptSession:
    return KeptSession(
        key=hashed(name),
        scope="all",
        principal="token",
        params=Raw(b'{"protocolVersion":"2025-11-25"}'),
        subscribed=[f"test://{'x' * 1000}/{number}" for number in range(uris)],
        used_at=used_at or time.time(),
    )


async def save(path: Path, *sessions: KeptSession) -> None:
    """Save sessions as they change, and stop."""
    file = SessionFile(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.run, lambda: file.sessions.update({each.key: each for each in sessions}))
        file.save_soon()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel(reason="the daemon stops")


def names(path: Path) -> list[str]:
    return list(SessionFile(path).sessions)


async def test_the_file_lets_nobody_in(tmp_path: Path) -> None:
    """It is private, and holds no session id."""
    path = tmp_path / "sessions"
    await save(path, session("secret-id"))
    assert names(path) == [hashed("secret-id")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"secret-id" not in path.read_bytes()


async def test_sessions_that_nobody_used_for_long_are_forgotten(tmp_path: Path) -> None:
    """The time in which no daemon ran does not count."""
    now, path = time.time(), tmp_path / "sessions"
    await save(path, session("recent", now - 60), session("old", now - 5 * 3600))
    os.utime(path, (now - 10 * 3600, now - 10 * 3600))
    assert names(path) == [hashed("recent"), hashed("old")]
    os.utime(path, (now, now))
    assert names(path) == [hashed("recent")]


async def test_file_is_bounded_and_the_sessions_used_last_are_kept(tmp_path: Path) -> None:
    now, path = time.time(), tmp_path / "sessions"
    await save(path, *(session(str(age), now - age) for age in range(1, 400)))
    assert names(path) == [hashed(str(age)) for age in range(1, 257)]
    await save(path, *(session(str(age), now - age, uris=100) for age in range(1, 200)))
    assert path.stat().st_size <= kept_sessions.MAX_SIZE
    assert names(path)[:2] == [hashed("1"), hashed("2")]
    assert len(names(path)) < 100


LINE = msgspec.json.encode(session("good"))
BROKEN = [
    b"",
    b"\0" * 1000,
    b"[" * 100_000,
    b'{"key":"x"}',
    LINE[:-20],
    LINE.replace(b'"used_at":', b'"used_at":"soon", "x":'),
    LINE.replace(b'"subscribed":[]', b'"subscribed":[1]'),
]


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_corrupt_file_costs_only_what_is_corrupt(tmp_path: Path, broken: bytes) -> None:
    path = tmp_path / "sessions"
    path.write_bytes(broken + b"\n" + LINE + b"\n")
    assert names(path) == [hashed("good")]


def test_what_is_no_file_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert SessionFile(tmp_path).sessions == {}
    assert "it is a directory" in caplog.text
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(kept_sessions.MAX_SIZE + 1)
    assert SessionFile(large).sessions == {}


async def test_a_full_disk_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    await save(tmp_path / "file" / "sessions", session("x"))
    assert len([each for each in caplog.records if "cannot write" in each.getMessage()]) == 1
