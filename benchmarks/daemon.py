"""Run a private daemon with stub servers, and measure its memory and CPU time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from benchmarks.load import LIMIT, STUB, OnLine, Wrong, attached, control

_POLL = 0.002
"""Seconds between attempts to connect to a daemon that is starting."""
TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class Daemon:
    """A running daemon whose servers are all connected."""

    pid: int
    socket: str
    environ: dict[str, str]
    http: int
    """The HTTP port, or 0 without HTTP."""
    connected_after: float
    """Seconds from the start of the process until all servers were connected."""

    def ours(self) -> list[int]:
        """Return the daemon and all its children except the servers."""
        lists = Path(f"/proc/{self.pid}/task").glob("*/children")  # of each thread, which may have forked
        children = " ".join(file.read_text() for file in lists).split()
        return [self.pid, *(int(pid) for pid in children if STUB[-1] not in _command(int(pid)))]

    def memory(self) -> tuple[float, str]:
        """Return the memory in MB, and whether the value is PSS or the resident size.

        Only root can read the PSS of a process that denies access to debuggers, as the daemon does.
        """
        try:
            return sum(_memory(pid, "smaps_rollup", "Pss:") for pid in self.ours()), "PSS"
        except PermissionError:
            return sum(_memory(pid, "status", "VmRSS:") for pid in self.ours()), "RSS"

    def cpu(self, seconds: float) -> float:
        """Measure the CPU use over the next seconds, in percent of one core."""
        before = sum(_ticks(pid) for pid in self.ours())
        time.sleep(seconds)
        return 100 * (sum(_ticks(pid) for pid in self.ours()) - before) / TICKS / seconds


def on_pipes(count: int, *arguments: str) -> dict[str, object]:
    """Return definitions of the stdio servers `stub-1` to `stub-N`, with more arguments of the stub."""
    return {f"stub-{n + 1}": {"command": STUB[0], "args": [*STUB[1:], *arguments]} for n in range(count)}


@contextmanager
def running(
    servers: Mapping[str, object],
    *,
    http: bool = False,
    settings: Mapping[str, object] | None = None,
    command: Sequence[str] = ("-m", "mcpd"),
) -> Iterator[Daemon]:
    """Run a daemon with these servers in temporary directories, and stop it at the end.

    `command`: the arguments of Python that start it.
    """
    with _process(servers, http=http, settings=settings, command=command) as (pid, socket, environ, start):
        _wait_connected(socket, len(servers), start + LIMIT)
        taken = time.monotonic() - start
        with control(socket) as line:
            status = line.ask({"jsonrpc": "2.0", "id": 1, "method": "mcpd/status", "params": {}})
        assert isinstance(status, dict)
        url = (status["daemon"]["http"] or {}).get("url", "")
        port = urlsplit(url).port or 0
        yield Daemon(pid=pid, socket=socket, environ=environ, http=port, connected_after=taken)


def first_call() -> float:
    """Start a daemon, and return the seconds from its start to the response to a tool call."""
    with _process(on_pipes(1)) as (_, socket, _, start):
        while True:
            with suppress(FileNotFoundError, ConnectionRefusedError), attached(socket, "stub-1") as line:
                OnLine(line).latencies("echo", 1)
                return time.monotonic() - start
            if time.monotonic() > start + LIMIT:
                raise Wrong("the daemon does not listen")
            time.sleep(_POLL)


@contextmanager
def _process(
    servers: Mapping[str, object],
    *,
    http: bool = False,
    settings: Mapping[str, object] | None = None,
    command: Sequence[str] = ("-m", "mcpd"),
) -> Iterator[tuple[int, str, dict[str, str], float]]:
    """Start a daemon; return its process ID, socket, environment and the time of its start."""
    with tempfile.TemporaryDirectory(prefix="mcpd-bench-") as home:
        config = Path(home, "mcpd.json")
        config.write_text(json.dumps({"mcpServers": servers, "settings": settings or {}}))
        socket = f"{home}/run/mcpd.sock"
        environ = private_environ(home, socket)
        argv = [sys.executable, *command, "--config", str(config), "--socket", socket]
        if http:
            argv += ["--http", "127.0.0.1:0", "--http-auth", "none"]
        with Path(home, "log").open("wb") as log:
            start = time.monotonic()
            process = subprocess.Popen(argv, env=environ, stderr=log)
        try:
            yield process.pid, socket, environ, start
        except (OSError, Wrong) as error:
            log_text = Path(home, "log").read_text(errors="replace")
            raise Wrong(f"{error!r}; the daemon's log:\n{log_text[-2000:]}") from error
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(LIMIT)
            finally:
                process.kill()
                process.wait()


def private_environ(home: str, socket: str) -> dict[str, str]:
    """Return the environment with all user directories replaced and without Python settings.

    A setting such as PYTHONDONTWRITEBYTECODE would make each start compile all modules again.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MCPD_"))}
    names = {"CONFIG_HOME": "config", "STATE_HOME": "state", "CACHE_HOME": "cache", "RUNTIME_DIR": "runtime"}
    for name, directory in names.items():
        os.makedirs(f"{home}/{directory}", mode=0o700, exist_ok=True)
        environ[f"XDG_{name}"] = f"{home}/{directory}"
    return environ | {"HOME": home, "MCPD_SOCKET": socket, "MCPD_NO_START": "1"}


def _wait_connected(socket: str, servers: int, deadline: float) -> None:
    while True:
        with suppress(FileNotFoundError, ConnectionRefusedError), control(socket) as line:
            line.write(b'{"jsonrpc":"2.0","id":1,"method":"mcpd/events","params":{}}\n')
            connected: set[str] = set()
            while len(connected) < servers:
                for text in line.lines():
                    if b'"error"' not in text and b'"connected"' not in text:
                        continue  # parsing all events of 200 servers would slow down the daemon
                    message = json.loads(text)
                    if "method" not in message and "error" in message:
                        raise Wrong(f"mcpd/events: {message['error']}")
                    event = message.get("params", {}).get("event", {})
                    if (event.get("status") or {}).get("status") == "connected":
                        connected.add(event["server"])
                if time.monotonic() > deadline:
                    raise Wrong(f"only {len(connected)} of {servers} servers are connected")
            return
        if time.monotonic() > deadline:
            raise Wrong("the daemon does not listen")
        time.sleep(_POLL)


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _memory(pid: int, file: str, field: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise Wrong(f"/proc/{pid}/{file} has no {field}")


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
