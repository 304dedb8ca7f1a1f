"""Notifications on the desktop, through `notify-send` of libnotify."""

from __future__ import annotations

import html
import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Collection, Mapping

import trio

from mcpd.process.labels import start_process

log = logging.getLogger("mcpd.process")

TIMEOUT = 5.0
"""Seconds for a program to pass on a notification. A session without a desktop may not answer."""
_PROGRAM = "notify-send"


async def show_notification(title: str, text: str, environ: Mapping[str, str]) -> bool:
    """Show a notification, and return whether a desktop accepted it. Never raises. Escapes markup in `text`.

    Both strings are visible in the list of processes for a moment.
    """
    if not _has_session_bus(environ):
        return False
    program = shutil.which(_PROGRAM, path=environ.get("PATH"))
    if program is None:
        return False
    options = ("--app-name=mcpd", "--icon=dialog-password", "--")
    try:
        returncode = await _run([program, *options, title, html.escape(text, quote=False)], environ)
    except OSError as error:
        log.debug("%s cannot be run: %s", program, error.strerror)
        return False
    if returncode != 0:
        log.debug("%s failed with %d: is there a desktop?", program, returncode)
    return returncode == 0


async def _run(command: list[str], environ: Mapping[str, str]) -> int:
    """Return the exit code of a program, which is killed if it takes too long. Raises OSError."""
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = await start_process(command, None, env=dict(environ), **quiet)
    try:
        with trio.move_on_after(TIMEOUT):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):  # after SIGKILL this is quick
                await process.wait()
    return -signal.SIGKILL


def _has_session_bus(environ: Mapping[str, str]) -> bool:
    directory = environ.get("XDG_RUNTIME_DIR")
    return bool(environ.get("DBUS_SESSION_BUS_ADDRESS")) or (
        directory is not None and os.path.exists(os.path.join(directory, "bus"))
    )


class LimitedNotifications:
    """`min_interval`: seconds between two notifications about the same subject. `is_enabled`: whether the
    user wants them. `start` must run a task that outlives whatever caused the notification.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        is_enabled: Callable[[], bool],
        start: Callable[[Callable[[], Awaitable[None]]], None],
        min_interval: float,
    ) -> None:
        self._environ = environ
        self._is_enabled = is_enabled
        self._start = start
        self._min_interval = min_interval
        self._last: dict[str, float] = {}
        """By subject (`trio.current_time()`)."""

    def show(self, title: str, text: str, subjects: Collection[str] = ("",)) -> None:
        """Show a notification unless there was one about each of its subjects lately. Returns immediately.

        Neither text may contain a secret.
        """
        now, interval = trio.current_time(), self._min_interval
        if all(now - self._last.get(each, -interval) < interval for each in subjects):
            return
        if not self._is_enabled():
            return
        self._last.update(dict.fromkeys(subjects, now))

        async def run() -> None:
            await show_notification(title, text, self._environ)

        self._start(run)
