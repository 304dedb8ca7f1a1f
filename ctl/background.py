"""The daemon without a service manager: ending the one that answers, and what it has written."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Generator, Iterator
from typing import BinaryIO

from ctl import autostart
from ctl.daemon_client import DaemonClient
from ctl.errors import CtlError, DaemonUnreachable

STOP_TIMEOUT = 15.0
"""Seconds. The daemon gives its servers at most ten."""
_POLL_SECONDS = 0.25


def stop(socket: str) -> bool:
    """Ask the daemon on the socket to end, and wait until its process has. False when there is none.

    Raises CtlError when it does not end within STOP_WITHIN.
    """
    try:
        with DaemonClient(socket) as client:
            pid = client.call("mcpd/version", timeout=5.0).value.get("pid")
            handle = os.pidfd_open(pid) if isinstance(pid, int) else -1
            try:
                _request_shutdown(client)
                if handle >= 0 and not select.select([handle], [], [], STOP_TIMEOUT)[0]:
                    raise CtlError(
                        f"mcpd (pid {pid}) did not stop within {STOP_TIMEOUT:.0f} s",
                        hint=f"kill -9 {pid} ends it, and its servers end with it",
                    )
            finally:
                if handle >= 0:
                    os.close(handle)
    except (DaemonUnreachable, ProcessLookupError):  # somebody else has stopped it meanwhile
        return False
    return True


def _request_shutdown(client: DaemonClient) -> None:
    try:
        client.call("mcpd/shutdown", timeout=5.0)
    except DaemonUnreachable:
        return  # it closed the connection before it answered: on its way out


def log_lines(path: str, count: int, *, follow: bool) -> Generator[str]:
    """The last lines of the log, and, to follow it, those that are written from then on, without end.

    Across a change of the file: a start may put a long one aside. Raises OSError when there is none.
    """
    with open(path, "rb") as file:
        yield from autostart.tail(file, count)
        if follow:
            yield from _follow(path, file)
    while follow:
        while not os.path.exists(path):
            time.sleep(_POLL_SECONDS)
        with open(path, "rb") as file:
            yield from _follow(path, file)


def _follow(path: str, file: BinaryIO) -> Iterator[str]:
    """Lines as they are written behind what was read, until another file is in its place."""
    rest = b""
    while True:
        still_there = _is_same_file(path, file)
        *whole, rest = (rest + file.read()).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
        if not still_there:
            return
        time.sleep(_POLL_SECONDS)


def _is_same_file(path: str, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
