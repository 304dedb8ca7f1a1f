"""Notifications: programs that pass them on are scripts here."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from mcpd.auth.service import NOTIFICATION_INTERVAL, notify_login_needed
from mcpd.process import desktop_notification
from mcpd.process.desktop_notification import LimitedNotifications, show_notification


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bus").touch()
    return {"PATH": f"{tmp_path}/bin", "XDG_RUNTIME_DIR": str(tmp_path)}


def program(home: Path, name: str, script: str) -> None:
    path = home / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def recording(home: Path, name: str, *, fails: bool = False) -> None:
    program(home, name, f'for each; do echo "$each"; done >> {home}/{name}.log; exit {int(fails)}')


def recorded(home: Path, name: str) -> list[str]:
    log = home / f"{name}.log"
    return log.read_text().splitlines() if log.exists() else []


async def test_a_notification_is_sent_once_and_shown_as_text(tmp_path: Path, environ: dict[str, str]) -> None:
    recording(tmp_path, "notify-send")
    assert await show_notification("-x: login needed", "<b>a & b", environ)
    assert recorded(tmp_path, "notify-send")[-3:] == ["--", "-x: login needed", "&lt;b&gt;a &amp; b"]


async def test_without_a_desktop_nothing_happens(tmp_path: Path, environ: dict[str, str]) -> None:
    assert not await show_notification("title", "text", environ)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "notify-send").write_text("not a program")
    (tmp_path / "bin" / "notify-send").chmod(0o755)
    assert not await show_notification("title", "text", environ)
    recording(tmp_path, "notify-send")
    (tmp_path / "bus").unlink()
    assert not await show_notification("title", "text", environ)
    assert recorded(tmp_path, "notify-send") == []


async def test_a_program_that_hangs_is_ended(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desktop_notification, "TIMEOUT", 0.2)
    program(tmp_path, "notify-send", "exec /bin/sleep 1000")
    with trio.fail_after(60):
        assert not await show_notification("title", "text", environ)


async def test_there_is_one_notification_for_each_server_and_hour(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []

    async def show(title: str, text: str, environ: object) -> bool:
        shown.append((title, text))
        return True

    monkeypatch.setattr("mcpd.process.desktop_notification.show_notification", show)
    is_enabled = True
    async with trio.open_nursery() as nursery:
        notifications = LimitedNotifications(
            {}, lambda: is_enabled, nursery.start_soon, NOTIFICATION_INTERVAL
        )
        for _ in range(100):
            notify_login_needed(notifications, ["a"], "it is over")
            notify_login_needed(notifications, ["b", "c"], "")
        notify_login_needed(notifications, [], "nobody uses it")
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(shown) == [
            ("a: login needed", "it is over\nRun: mcpctl login a"),
            ("b, c: login needed", "Run: mcpctl login b"),
        ]
        await trio.sleep(NOTIFICATION_INTERVAL + 1)
        notify_login_needed(notifications, ["c"], "")
        is_enabled = False
        notify_login_needed(notifications, ["a"], "")
        await trio.testing.wait_all_tasks_blocked()
        assert [title for title, _ in shown[2:]] == ["c: login needed"]
