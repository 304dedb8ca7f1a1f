"""A private daemon for a benchmark, with so many stub servers, and what it costs the machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import attrs

from benchmarks.load import LIMIT, STUB, Wrong, control

TICKS = os.sysconf("SC_CLK_TCK")


@attrs.frozen(kw_only=True)
class Daemon:
    """One that runs, with all its servers connected."""

    pid: int
    socket: str
    environ: dict[str, str]
    http: int
    """The port of its HTTP door; 0 when it has none."""
    connected_after: float
    """Seconds from its start until every server was connected, Python's own start included."""

    def ours(self) -> list[int]:
        """The daemon and what it runs for itself, which is all of its children but the servers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *(int(pid) for pid in children if STUB[-1] not in _command(int(pid)))]

    def memory(self) -> tuple[float, str]:
        """MB, and whether it is the proportional share (PSS) or the whole resident size.

        Only root may see the share of a process that keeps its memory from debuggers, as the daemon does.
        """
        try:
            return sum(_memory(pid, "smaps_rollup", "Pss:") for pid in self.ours()), "PSS"
        except PermissionError:
            return sum(_memory(pid, "status", "VmRSS:") for pid in self.ours()), "RSS"

    def cpu(self, seconds: float) -> float:
        """Per cent of one core over so many seconds from now."""
        before = sum(_ticks(pid) for pid in self.ours())
        time.sleep(seconds)
        return 100 * (sum(_ticks(pid) for pid in self.ours()) - before) / TICKS / seconds


def on_pipes(count: int) -> dict[str, object]:
    """Definitions of `stub-1` … `stub-N`, each a child of the daemon."""
    return {f"stub-{n + 1}": {"command": STUB[0], "args": STUB[1:]} for n in range(count)}


@contextmanager
def running(servers: Mapping[str, object], *, http: bool = False) -> Iterator[Daemon]:
    """A daemon with these servers, by name, in directories of its own; stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="mcpd-bench-") as home:
        config = Path(home, "mcpd.json")
        config.write_text(json.dumps({"mcpServers": servers}))
        socket = f"{home}/run/mcpd.sock"
        environ = private_environ(home, socket)
        command = [sys.executable, "-m", "mcpd", "--config", str(config), "--socket", socket]
        if http:
            command += ["--http", "127.0.0.1:0", "--http-auth", "none"]
        with Path(home, "log").open("wb") as log:
            start = time.monotonic()
            process = subprocess.Popen(command, env=environ, stderr=log)
        try:
            _wait_connected(socket, len(servers), start + LIMIT)
            taken = time.monotonic() - start
            with control(socket) as line:
                status = line.ask({"jsonrpc": "2.0", "id": 1, "method": "mcpd/status", "params": {}})
            assert isinstance(status, dict)
            url = (status["daemon"]["http"] or {}).get("url", "")
            yield Daemon(
                pid=process.pid,
                socket=socket,
                environ=environ,
                http=urlsplit(url).port or 0,
                connected_after=taken,
            )
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
    """Ours, with every directory of the user's replaced, and Python as an installed program finds it.

    A setting such as PYTHONDONTWRITEBYTECODE would make every start compile everything anew.
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
                for message in map(json.loads, line.lines()):
                    if "error" in message:
                        raise Wrong(f"mcpd/events: {message['error']}")
                    event = message.get("params", {}).get("event", {})
                    if (event.get("status") or {}).get("status") == "connected":
                        connected.add(event["server"])
                if time.monotonic() > deadline:
                    raise Wrong(f"only {len(connected)} of {servers} servers are connected")
            return
        if time.monotonic() > deadline:
            raise Wrong("the daemon does not listen")
        time.sleep(0.005)


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
