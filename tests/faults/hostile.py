"""A server whose processes do everything to outlive it: they leave the group, the session, their parent, and
the environment that marks them.
"""

from __future__ import annotations

import itertools
import os
import random
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.e2e.harness import Json, fake, wait_until
from tests.processes import alive
from tests.stopwatch import within

_numbers = itertools.count(random.Random().randrange(10**9))

OVERWRITER = """
import ctypes, os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
os.setsid()
first = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
place = ctypes.cast(first, ctypes.POINTER(ctypes.c_void_p))
for text in [first[n] for n in range(len(os.environ))]:
    pass
size = sum(len(first[n]) + 1 for n in range(len(os.environ)))
ctypes.memset(place[0], 0, size)
time.sleep({seconds})
"""
"""What postgres, nginx and Chromium do to show a title in `ps`."""


class Hostile:
    """A definition whose server starts such processes; `count` of them have `token` in their command line."""

    def __init__(self) -> None:
        self.token = f"{100000 + next(_numbers) % 10**9}.0{next(_numbers)}"
        sleep = f'trap "" TERM HUP INT; exec sleep {self.token}'
        lonely = f"setsid sh -c {shlex.quote(sleep)} </dev/null >/dev/null 2>&1"
        script = Path(os.environ.get("TMPDIR", "/tmp")) / f"overwriter-{self.token}.py"
        script.write_text(OVERWRITER.format(seconds=self.token))
        self._script = script
        parts = [
            f"({lonely} &)",  # a double fork: its parent is gone
            f"(env -i {lonely} &)",
            f"env -i {lonely} &",
            f"(env -i MCPD_INSTANCE=somebody.1 {lonely} &)",
            f"(env -i setsid sh -c {shlex.quote(f'({lonely} &)')} &)",
            f"(env -i {sys.executable} -I -S {script} </dev/null >/dev/null 2>&1 &)",
        ]
        self.count = len(parts)
        command = shlex.join([fake()["command"], *fake()["args"]])
        self.definition: Json = {"command": "sh", "args": ["-c", "\n".join([*parts, f"exec {command}"])]}

    def processes(self) -> list[int]:
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with suppress(OSError):
                    line = Path(f"/proc/{entry}/cmdline").read_bytes()
                    ours = b"sleep\0" + self.token.encode() in line or str(self._script).encode() in line
                    if ours and b"-c" not in line and alive(int(entry)):
                        found.append(int(entry))
        return found

    def wait_started(self) -> None:
        wait_until(lambda: len(self.processes()) == self.count, lambda: f"running: {self.processes()}")

    def assert_gone(self, limit: float = 2.0) -> None:
        taken = wait_until(lambda: not self.processes(), lambda: f"left: {self.processes()}")
        assert within(taken, limit), f"the last process ended after {taken:.2f} s"

    def clean_up(self) -> None:
        self._script.unlink(missing_ok=True)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
