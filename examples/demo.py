"""The tour of `make demo`: a daemon of its own, real servers, and everything a person does with them.

Runs in a directory of its own and touches nothing of yours. Exit status 1 if anything is not as it says.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from shell import Terminal, lines

ROOT = Path(__file__).resolve().parent.parent
NPM = ROOT / ".npm/node_modules/.bin"
Json = dict[str, Any]


class NotAsPromised(Exception):
    """The tour cannot go on: something is not as it says."""


@attrs.frozen
class Tour:
    """The place, the terminal and the daemon."""

    home: Path
    terminal: Terminal
    daemon: subprocess.Popen[bytes]

    def mcpctl(self, *words: str, code: int = 0, has: str = "") -> str:
        """Run and show one command. Raises NotAsPromised unless it ends with `code` and prints `has`."""
        shown = self.terminal.run("mcpctl", *words)
        expect(shown.code == code, f"mcpctl {words[0]} exits with {code}, not {shown.code}")
        expect(has in shown.text, f"mcpctl {words[0]} prints {has!r}")
        return shown.text

    def status(self) -> dict[str, Json]:
        """Every server's status, by name."""
        answer = json.loads(self.terminal.ask("mcpctl", "status", "--json").text)
        return {server["name"]: server for server in answer["servers"]}

    def all_connected(self) -> dict[str, Json]:
        """Wait for every server that is switched on."""
        waited = self.terminal.ask("mcpctl", "wait", "--timeout", "120")
        expect(waited.code == 0, f"every server connects: {waited.text}")
        return self.status()


def expect(is_so: bool, promise: str) -> None:
    if not is_so:
        raise NotAsPromised(promise)


def main() -> int:
    # Not in $TMPDIR, which may be deep: the path of a Unix socket has at most 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="mcpd-demo-", dir="/tmp"))
    terminal = Terminal(private_environment(home), home)
    began = time.monotonic()
    try:
        with running_daemon(home, terminal, definitions(home, terminal)) as tour:
            instance = show(tour)
            stop(tour, instance)
    except NotAsPromised as broken:
        terminal.bad(f"not as promised: {broken}")
        terminal.say((home / "mcpd.log").read_text()[-3000:])
        return 1
    except KeyboardInterrupt:
        terminal.say("\nInterrupted; the daemon and its servers have been stopped.")
        return 130
    finally:
        shutil.rmtree(home, ignore_errors=True)
    terminal.say(f"\nThat took {time.monotonic() - began:.0f} seconds. Your turn: README.md says how.")
    return 0


def show(tour: Tour) -> str:
    """Everything up to the end of the daemon; the mark that its processes carry."""
    look(tour)
    call(tour)
    edit(tour)
    kill(tour)
    toggle(tour)
    apply(tour)
    answer = json.loads(tour.terminal.ask("mcpctl", "status", "--json").text)
    return str(answer["daemon"]["instance"])


# ── the steps ────────────────────────────────────────────────────────────────────────────────────


def look(tour: Tour) -> None:
    terminal, servers = tour.terminal, definitions(tour.home, tour.terminal)
    terminal.heading(1, "One daemon, which starts the servers and keeps them")
    terminal.command("mcpd --config servers.json &")
    began = time.monotonic()
    statuses = tour.all_connected()
    terminal.good(
        f"{len(servers)} servers, started together, were ready {time.monotonic() - began:.1f} s later"
    )
    tour.mcpctl("status", has="connected")
    tools = sum(status["tools"] for status in statuses.values())
    offers = "git" if "git" in servers else "time"
    terminal.heading(2, f"They offer {tools} tools; these are those of {offers}")
    tour.mcpctl("list-tools", offers, has=f"@{offers}")


def call(tour: Tour) -> None:
    terminal = tour.terminal
    terminal.heading(3, "Call some, from the shell")
    tour.mcpctl("call", "echo@test", "text=hello", has="hello")
    tour.mcpctl("call", "get_current_time@time", "timezone=Europe/Paris", has="Europe/Paris")
    servers = tour.status()
    if "git" in servers:
        tour.mcpctl("call", "git_status@git", "repo_path=project", has="notes.txt")
    if "files" in servers:
        tour.mcpctl("call", "list_directory@files", "path=.", has="notes.txt")
    terminal.say("\nA slow one tells how far it is; Ctrl-C would cancel it on the server:")
    tour.mcpctl("call", "slow@test", "seconds:=2", "steps:=4", has="took 2 s")
    terminal.say("\nA mistake is found before anything is sent:")
    tour.mcpctl("call", "add@test", "a:=1", "b=two", code=2, has="integer")


def edit(tour: Tour) -> None:
    terminal, before = tour.terminal, tour.status()
    terminal.heading(4, "Editors see all of them as one server: `mcpctl install EDITOR` writes this entry")
    tour.mcpctl("install", "cursor", "--print", has="bridge")
    terminal.say("\nHere is what an editor does with it (examples/editor.py, with the official SDK):")
    calls = [("time__get_current_time", '{"timezone": "UTC"}'), ("test__add", '{"a": 20, "b": 22}')]
    words = [word for name, arguments in calls for word in ("--call", name, arguments)]
    bridge = ["mcpctl", "bridge", "--client", "demo"]
    shown = tour.terminal.run(
        "python", str(ROOT / "examples/editor.py"), *words, *bridge, shown=" ".join(bridge)
    )
    expect(shown.code == 0, "an MCP client gets through the bridge")
    servers = tour.status()
    expect(all(servers[name]["pid"] == before[name]["pid"] for name in before), "no server is started for it")
    for name, status in servers.items():
        expect(f"{status['tools']} of {name}" in shown.text, f"it sees the tools of {name}")
    for said in ("time__get_current_time: {", '"UTC"', "test__add: 42"):
        expect(said in shown.text, f"its calls are answered: {said}")
    terminal.good(f"one connection, {len(servers)} servers, and no new process for any of them")


def kill(tour: Tour) -> None:
    terminal = tour.terminal
    terminal.heading(5, "Kill a server, and see it return")
    before = tour.status()
    pid = before["time"]["pid"]
    terminal.command(f"kill -KILL {pid}    # that is time")
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    while tour.status()["time"]["last_error"] is None:
        expect(time.monotonic() - killed < 5, "the daemon notices at once")
    tour.mcpctl("status", has="SIGKILL")
    after = tour.all_connected()
    took = time.monotonic() - killed
    tour.mcpctl("status", "time", has="SIGKILL")
    expect(after["time"]["pid"] not in (pid, None), "time has a new process")
    expect(after["time"]["restarts"] == 1, "time has been restarted once")
    same = [name for name in before if name != "time"]
    expect(all(before[name]["pid"] == after[name]["pid"] for name in same), "the others were left alone")
    terminal.good(f"time was back within {took:.1f} s, and still says why it was away")
    terminal.good(f"nothing was noticed by {lines(same)}")


def toggle(tour: Tour) -> None:
    tour.terminal.heading(6, "Switch one off and on; that would survive a restart, too")
    tour.mcpctl("disable", "test", has="disabled")
    tour.mcpctl("call", "echo@test", "text=hello", code=6, has="switched off")
    tour.mcpctl("enable", "test", has="connected")


def apply(tour: Tour) -> None:
    terminal = tour.terminal
    before = tour.status()
    servers = definitions(tour.home, terminal)
    servers["time"] = {"command": "mcp-server-time", "args": ["--local-timezone", "Europe/Paris"]}
    servers["spare"] = servers["test"] | {"lazy": True}
    gone = [name for name in ("everything",) if servers.pop(name, None)]
    write(tour.home / "changed.json", servers)
    leaves = f", {lines(gone)} leaves" if gone else ""
    terminal.heading(7, f"Apply another set: time gets an argument{leaves}, and spare, a lazy one, is new")
    tour.mcpctl("apply", "changed.json", "--plan", has="would be")
    terminal.say("\nThat was the plan. Now it is done:")
    tour.mcpctl("apply", "changed.json", has="~ time")
    after = tour.all_connected()
    tour.mcpctl("status", has="idle")
    kept = [name for name in before if name not in ("time", *gone)]
    expect(set(after) == set(servers), f"the set is {lines(list(servers))}")
    expect(after["time"]["pid"] != before["time"]["pid"], "time has a new process")
    expect(
        all(before[name]["pid"] == after[name]["pid"] for name in kept), "unchanged servers keep their pid"
    )
    terminal.good(f"the same processes and connections as before: {lines(kept)}")
    terminal.say("\nThe lazy one starts when it is used:")
    tour.mcpctl("call", "echo@spare", "text=awake", has="awake")


def stop(tour: Tour, instance: str) -> None:
    terminal = tour.terminal
    terminal.heading(8, "Stop, and leave nothing behind")
    servers = [status for status in tour.status().values() if status["pid"]]
    were = marked(instance)
    terminal.command(f"grep -l MCPD_INSTANCE={instance} /proc/[0-9]*/environ | wc -l")
    terminal.say(str(len(were)))
    tour.mcpctl("daemon", "stop", has="stopped")
    tour.daemon.wait(60)
    expect(tour.daemon.returncode == 0, f"mcpd exits with 0, not {tour.daemon.returncode}")
    left = marked(instance)
    terminal.command(f"grep -l MCPD_INSTANCE={instance} /proc/[0-9]*/environ | wc -l")
    terminal.say(str(len(left)))
    expect(len(were) >= len(servers), "the servers' processes carry the mark of the daemon")
    expect(not left, f"no process is left; there are {left}")
    expect(not (tour.home / "mcpd.sock").exists(), "the socket is gone")
    terminal.good("every process that the daemon and its servers had started has ended")


# ── the place ────────────────────────────────────────────────────────────────────────────────────


def private_environment(home: Path) -> dict[str, str]:
    """Ours, with nothing in it that leads to the user's own daemon."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MCPD_", "MCPCTL_", "XDG_"))}
    programs = [str(Path(sys.executable).parent), str(NPM), os.environ.get("PATH", os.defpath)]
    places = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
    return (
        kept
        | places
        | {
            "XDG_RUNTIME_DIR": str(home),
            "MCPD_SOCKET": str(home / "mcpd.sock"),
            "MCPD_NO_START": "1",
            "PATH": os.pathsep.join(programs),
        }
    )


def definitions(home: Path, terminal: Terminal) -> dict[str, Json]:
    """The servers there are on this machine."""
    project = str(home / "project")
    servers: dict[str, Json] = {
        "test": {"command": "python", "args": ["-m", "mcpd.testserver"]},
        "time": {"command": "mcp-server-time"},
    }
    if shutil.which("git"):
        servers["git"] = {"command": "mcp-server-git", "args": ["--repository", project], "cwd": str(home)}
    if (NPM / "mcp-server-everything").exists() and terminal.ask("node", "--version").code == 0:
        servers["everything"] = {"command": "mcp-server-everything"}
        servers["files"] = {"command": "mcp-server-filesystem", "args": [project], "cwd": str(home)}
    return servers


def write(path: Path, servers: dict[str, Json]) -> None:
    path.write_text(json.dumps({"mcpServers": servers}, indent=2) + "\n")


def make_project(home: Path) -> None:
    """A git repository with something to say about it."""
    project = home / "project"
    project.mkdir()
    (project / "notes.txt").write_text("Buy milk.\n")
    if shutil.which("git"):
        author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgSign=false"]
        git = ["git", "-C", str(project), *author]
        subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "--message", "Notes"], check=True)
    (project / "notes.txt").write_text("Buy milk and tea.\n")


@contextmanager
def running_daemon(home: Path, terminal: Terminal, servers: dict[str, Json]) -> Iterator[Tour]:
    """The daemon, from its start until it has ended, one way or another."""
    make_project(home)
    write(home / "servers.json", servers)
    with (home / "mcpd.log").open("wb") as log:
        daemon = subprocess.Popen(
            ["mcpd", "--config", "servers.json"],
            env=dict(terminal.environ),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for_socket(home / "mcpd.sock", daemon)
        yield Tour(home, terminal, daemon)
    finally:
        if daemon.poll() is None:
            daemon.terminate()
            daemon.wait(60)


def wait_for_socket(path: Path, daemon: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        expect(daemon.poll() is None, "mcpd starts")
        expect(time.monotonic() < end, "mcpd listens within a minute")
        time.sleep(0.02)


def marked(instance: str) -> list[int]:
    """Every process that carries the mark of that daemon."""
    needle = f"MCPD_INSTANCE={instance}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
    return found


if __name__ == "__main__":
    sys.exit(main())
