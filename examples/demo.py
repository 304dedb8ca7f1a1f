"""Show what mcpd does, with a private daemon and real servers (`make demo`).

The demo runs in a temporary directory and does not touch your files. It checks every claim that it prints
and exits with 1 if a check fails.
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
TEST_SERVER = str(ROOT / "examples" / "testserver")
EDITOR_FILE = """{
  // my servers
  "mcpServers": {
    "tickets": {
      "command": "python",
      "args": ["TEST_SERVER"],
      "env": { "TOKEN": "demo-token-7f3a9c" },
    },
  }
}
""".replace("TEST_SERVER", TEST_SERVER)
Json = dict[str, Any]


class CheckFailed(Exception):
    """A claim of the demo is not true."""


@attrs.frozen
class Tour:
    """The directory, the terminal and the daemon of the demo."""

    home: Path
    terminal: Terminal
    daemon: subprocess.Popen[bytes]

    def mcpctl(self, *words: str, code: int = 0, has: str = "") -> str:
        """Run a command and show it. Raises CheckFailed unless it exits with `code` and prints `has`."""
        shown = self.terminal.run("mcpctl", *words)
        expect(shown.code == code, f"mcpctl {words[0]} exits with {code}, not {shown.code}")
        expect(has in shown.text, f"mcpctl {words[0]} prints {has!r}")
        return shown.text

    def status(self) -> dict[str, Json]:
        """Return the status of every server by name."""
        answer = json.loads(self.terminal.ask("mcpctl", "status", "--json").text)
        return {server["name"]: server for server in answer["servers"]}

    def all_connected(self) -> dict[str, Json]:
        """Wait until all enabled servers are connected, and return their status."""
        waited = self.terminal.ask("mcpctl", "wait", "--timeout", "120")
        expect(waited.code == 0, f"every server connects: {waited.text}")
        return self.status()


def expect(condition: bool, claim: str) -> None:
    if not condition:
        raise CheckFailed(claim)


def main() -> int:
    # Not in $TMPDIR, which may be deep: the path of a Unix socket has at most 107 bytes.
    home = Path(tempfile.mkdtemp(prefix="mcpd-demo-", dir="/tmp"))
    terminal = Terminal(private_environment(home), home)
    began = time.monotonic()
    try:
        with running_daemon(home, terminal, definitions(home, terminal)) as tour:
            instance = show(tour)
            stop(tour, instance)
    except CheckFailed as failed:
        terminal.bad(f"check failed: {failed}")
        terminal.say((home / "mcpd.log").read_text()[-3000:])
        return 1
    except KeyboardInterrupt:
        terminal.say("\nInterrupted. The daemon and its servers have been stopped.")
        return 130
    finally:
        shutil.rmtree(home, ignore_errors=True)
    terminal.say(f"\nThe demo took {time.monotonic() - began:.0f} seconds. To use mcpd yourself, run:\n")
    terminal.command("pipx install .    # or: uv tool install .")
    terminal.command("mcpctl import     # shows the servers of your editors, and asks before it imports them")
    return 0


def show(tour: Tour) -> str:
    """Run all steps before the stop, and return the instance ID of the daemon."""
    look(tour)
    call(tour)
    edit(tour)
    take_over(tour)
    kill(tour)
    explain(tour)
    toggle(tour)
    apply(tour)
    answer = json.loads(tour.terminal.ask("mcpctl", "status", "--json").text)
    return str(answer["daemon"]["instance"])


# ── the steps ────────────────────────────────────────────────────────────────────────────────────


def look(tour: Tour) -> None:
    terminal, servers = tour.terminal, definitions(tour.home, tour.terminal)
    terminal.heading(1, "Start the daemon, which starts the servers")
    terminal.command("mcpd --config servers.json &")
    began = time.monotonic()
    if terminal.tty:  # in a pipe, each step of the progress would be a line
        tour.mcpctl("wait", "--timeout", "120")
    statuses = tour.all_connected()
    terminal.good(
        f"{len(servers)} servers started together and were ready after {time.monotonic() - began:.1f} s"
    )
    tour.mcpctl("status", has="connected")
    tools = sum(status["tools"] for status in statuses.values())
    offers = "git" if "git" in servers else "time"
    terminal.heading(2, f"The servers provide {tools} tools; {offers} has these")
    tour.mcpctl("list-tools", offers, has=f"@{offers}")


def call(tour: Tour) -> None:
    terminal = tour.terminal
    terminal.heading(3, "Call tools from the shell")
    tour.mcpctl("call", "echo@test", "text=hello", has="hello")
    tour.mcpctl("call", "get_current_time@time", "timezone=Europe/Paris", has="Europe/Paris")
    servers = tour.status()
    if "git" in servers:
        tour.mcpctl("call", "git_status@git", "repo_path=project", has="notes.txt")
    if "files" in servers:
        tour.mcpctl("call", "list_directory@files", "path=.", has="notes.txt")
    terminal.say("\nA slow tool reports its progress. Ctrl-C would cancel it on the server:")
    tour.mcpctl("call", "slow@test", "seconds:=2", "steps:=4", has="took 2 s")
    terminal.say("\nmcpctl finds invalid arguments before it sends the call:")
    tour.mcpctl("call", "add@test", "a:=1", "b=two", code=2, has="integer")


def edit(tour: Tour) -> None:
    terminal, before = tour.terminal, tour.status()
    terminal.heading(4, "Editors see all servers as one. `mcpctl install EDITOR` adds mcpd to an editor")
    tour.mcpctl("install", "cursor", "--dry-run", has="would be added")
    terminal.say("\nAn editor uses mcpd like this (examples/editor.py, with the official SDK):")
    calls = [("time__get_current_time", '{"timezone": "UTC"}'), ("test__add", '{"a": 20, "b": 22}')]
    words = [word for name, arguments in calls for word in ("--call", name, arguments)]
    bridge = ["mcpctl", "bridge", "--client", "demo"]
    shown = tour.terminal.run(
        "python", str(ROOT / "examples/editor.py"), *words, *bridge, shown=" ".join(bridge)
    )
    expect(shown.code == 0, "an MCP client can use the bridge")
    servers = tour.status()
    expect(
        all(servers[name]["pid"] == before[name]["pid"] for name in before),
        "the client does not start a server",
    )
    for name, status in servers.items():
        expect(f"{status['tools']} of {name}" in shown.text, f"the client sees the tools of {name}")
    for text in ("time__get_current_time: {", '"UTC"', "test__add: 42"):
        expect(text in shown.text, f"the result contains {text}")
    terminal.good(
        f"The client reached {len(servers)} servers over one connection, and no server was started for it"
    )


def take_over(tour: Tour) -> None:
    """Import an editor's servers, connect the editor to mcpd, and restore its file."""
    terminal, before = tour.terminal, tour.status()
    terminal.heading(5, "Take over the servers of an editor, and give them back")
    file = tour.home / ".cursor/mcp.json"
    file.parent.mkdir()
    file.write_text(EDITOR_FILE)
    terminal.say("Cursor has a server, with a token in the file:")
    tour.mcpctl("import", "cursor", "--yes", has="tickets")
    expect("demo-token" not in (tour.home / "servers.json").read_text(), "the token is moved to the store")
    tour.mcpctl("wait", "tickets", "--timeout", "60")
    tour.mcpctl("install", "cursor", "--take-over", has="mcpd")
    expect("bridge" in file.read_text(), "Cursor uses the bridge")
    terminal.say("\nTo undo this:")
    tour.mcpctl("uninstall", "cursor")
    expect(file.read_text() == EDITOR_FILE, "the file is restored byte for byte")
    terminal.good("The file of the editor is the same as before, byte for byte")
    tour.mcpctl("remove", "tickets", "--yes")
    expect(set(tour.status()) == set(before), "the server is removed")


def kill(tour: Tour) -> None:
    terminal = tour.terminal
    terminal.heading(6, "Kill a server and watch mcpd restart it")
    before = tour.status()
    pid = before["time"]["pid"]
    terminal.command(f"kill -KILL {pid}    # the process of time")
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    while tour.status()["time"]["last_error"] is None:
        expect(time.monotonic() - killed < 5, "the daemon notices the failure")
    tour.mcpctl("status", has="SIGKILL")
    after = tour.all_connected()
    took = time.monotonic() - killed
    tour.mcpctl("status", "time", has="SIGKILL")
    expect(after["time"]["pid"] not in (pid, None), "time has a new process")
    expect(after["time"]["restarts"] == 1, "time was restarted once")
    same = [name for name in before if name != "time"]
    expect(all(before[name]["pid"] == after[name]["pid"] for name in same), "the other servers kept running")
    terminal.good(f"time was connected again after {took:.1f} s, and its status still shows the failure")
    terminal.good(f"The other servers kept their processes: {lines(same)}")


def explain(tour: Tour) -> None:
    """Add a server that cannot start, and ask why."""
    terminal = tour.terminal
    terminal.heading(7, "Ask why a server does not start")
    (tour.home / "weather.py").write_text('raise SystemExit("WEATHER_KEY is not set")\n')
    tour.mcpctl("add", "weather", "--", "python", "weather.py", code=6, has="WEATHER_KEY is not set")
    shown = terminal.run("mcpctl", "why", "weather")  # its exit code depends on whether a retry is under way
    expect("WEATHER_KEY is not set" in shown.text, "mcpctl why shows what the server wrote")
    tour.mcpctl("remove", "weather", "--yes")


def toggle(tour: Tour) -> None:
    tour.terminal.heading(8, "Disable and enable a server (this persists across restarts)")
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
    removed = f", {lines(gone)} is removed" if gone else ""
    terminal.heading(9, f"Apply another set: time changes{removed}, and spare, a lazy server, is added")
    tour.mcpctl("apply", "changed.json", "--plan", has="would be")
    terminal.say("\nThat was the plan. The next command applies it:")
    tour.mcpctl("apply", "changed.json", has="~ time")
    after = tour.all_connected()
    tour.mcpctl("status", has="idle")
    kept = [name for name in before if name not in ("time", *gone)]
    expect(set(after) == set(servers), f"the servers are {lines(list(servers))}")
    expect(after["time"]["pid"] != before["time"]["pid"], "time has a new process")
    expect(
        all(before[name]["pid"] == after[name]["pid"] for name in kept),
        "unchanged servers keep their process",
    )
    terminal.good(f"These servers kept their processes and connections: {lines(kept)}")
    terminal.say("\nThe lazy server starts on first use:")
    tour.mcpctl("call", "echo@spare", "text=awake", has="awake")


def stop(tour: Tour, instance: str) -> None:
    terminal = tour.terminal
    terminal.heading(10, "Stop the daemon and all its processes")
    servers = [status for status in tour.status().values() if status["pid"]]
    before = processes_of(instance)
    terminal.command(f"grep -l MCPD_INSTANCE={instance} /proc/[0-9]*/environ | wc -l")
    terminal.say(str(len(before)))
    tour.mcpctl("daemon", "stop", has="stopped")
    tour.daemon.wait(60)
    expect(tour.daemon.returncode == 0, f"mcpd exits with 0, not {tour.daemon.returncode}")
    left = processes_of(instance)
    terminal.command(f"grep -l MCPD_INSTANCE={instance} /proc/[0-9]*/environ | wc -l")
    terminal.say(str(len(left)))
    expect(len(before) >= len(servers), "the processes of the servers have the instance ID of the daemon")
    expect(not left, f"no process remains, but there are {left}")
    expect(not (tour.home / "mcpd.sock").exists(), "the socket is removed")
    terminal.good("All processes of the daemon and its servers have ended")


# ── the environment ────────────────────────────────────────────────────────────────────────────────────


def private_environment(home: Path) -> dict[str, str]:
    """Return an environment that does not refer to the daemon of the user."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MCPD_", "MCPCTL_", "XDG_"))}
    programs = [str(Path(sys.executable).parent), str(NPM), os.environ.get("PATH", os.defpath)]
    directories = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
    return (
        kept
        | directories
        | {
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(home),
            "MCPD_SOCKET": str(home / "mcpd.sock"),
            "MCPD_NO_START": "1",
            "PATH": os.pathsep.join(programs),
        }
    )


def definitions(home: Path, terminal: Terminal) -> dict[str, Json]:
    """Return the definitions of the servers that are installed on this machine."""
    project = str(home / "project")
    servers: dict[str, Json] = {
        "test": {"command": "python", "args": [TEST_SERVER]},
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
    """Create a git repository with an uncommitted change, if there is none yet."""
    project = home / "project"
    if project.exists():
        return
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
    """Run the daemon and stop it at the end in any case."""
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


def processes_of(instance: str) -> list[int]:
    """Return all processes that belong to the given instance of the daemon."""
    needle = f"MCPD_INSTANCE={instance}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # the process has ended or belongs to another user
    return found


if __name__ == "__main__":
    sys.exit(main())
