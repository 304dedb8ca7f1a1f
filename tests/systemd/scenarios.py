"""Scenarios for the real mcpd under a real user manager; test_user_manager.py runs them inside it.

    scenarios.py NAME

Each scenario exits silently if it succeeds, and with a traceback otherwise.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("HOME", "/"))
RUNTIME = Path(os.environ.get("XDG_RUNTIME_DIR", "/run"))
SOCKET = RUNTIME / "mcpd" / "mcpd.sock"
MCPCTL = str(Path(sys.executable).with_name("mcpctl"))
FAKE = str(Path(__file__).resolve().parents[1] / "servers" / "fake.py")
POLITE = {"plain": {"command": sys.executable, "args": ["-I", "-S", FAKE]}}
STUBBORN = {
    **POLITE,
    "stubborn": {
        "command": sys.executable,
        "args": ["-I", "-S", FAKE, "--wrapper", "--ignore-eof", "--ignore-term", "--at", "ready", "spawn"],
    },
}
"""A well-behaved server, and one behind a wrapper that ignores SIGTERM and has a child in another session."""

SCENES: dict[str, Callable[[], None]] = {}


def scene(play: Callable[[], None]) -> Callable[[], None]:
    SCENES[play.__name__] = play
    return play


@scene
def installed_it_is_ready() -> None:
    """systemd waits until the service says so (Type=notify)."""
    install()
    shown = show("ActiveState", "SubState", "Type")
    assert shown == {"Type": "notify", "ActiveState": "active", "SubState": "running"}
    status = mcpctl_json("daemon", "status")
    assert status["running"] is True
    assert status["started_by"] == "systemd"
    assert status["pid"] == main_pid()
    assert status["unit"]["enabled"] is True
    assert stat.S_IMODE(SOCKET.stat().st_mode) == 0o600
    assert stat.S_IMODE(SOCKET.parent.stat().st_mode) == 0o700


@scene
def the_path_of_the_shell_reaches_the_servers() -> None:
    """The manager's PATH is minimal, so the unit contains the PATH of the shell that installed it."""
    odd = "/opt/100% of my tools/bin"
    install(PATH=f"{os.environ['PATH']}:{odd}")
    environ = Path(f"/proc/{main_pid()}/environ").read_bytes().decode().split("\0")
    path = next(entry for entry in environ if entry.startswith("PATH="))
    assert path.endswith(odd), path
    assert "SECRET" not in (HOME / ".config/systemd/user/mcpd.service").read_text()


@scene
def installed_again_it_is_restarted_only_for_a_change() -> None:
    """A restart ends the calls of all clients. The search path of another shell is a change."""
    install()
    pid = main_pid()
    done = mcpctl("daemon", "install")
    assert (done.returncode, main_pid()) == (0, pid), done.stderr
    assert "was not restarted" in done.stderr
    install(PATH=f"{os.environ['PATH']}:/opt/more")
    assert main_pid() != pid


@scene
def doctor_finds_a_stale_unit_and_what_it_says_mends_it() -> None:
    """After a move to another directory, the unit starts an mcpd that no longer exists."""
    install()
    findings = {each["check"]: each for each in mcpctl_json("doctor", "--no-shell")["findings"]}
    assert findings["service"]["result"] == "ok", findings["service"]
    assert "unit" not in findings
    unit = HOME / ".config/systemd/user/mcpd.service"
    lines = ["ExecStart=/gone/mcpd" if line.startswith("ExecStart=") else line for line in unit.open()]
    unit.write_text("\n".join(line.rstrip("\n") for line in lines) + "\n")
    findings = {each["check"]: each for each in mcpctl_json("doctor", "--no-shell")["findings"]}
    assert (findings["unit"]["result"], findings["unit"]["next"]) == ("warning", "mcpctl daemon install")
    assert findings["service"]["next"].startswith("systemctl --user daemon-reload")
    install()
    findings = {each["check"]: each for each in mcpctl_json("doctor", "--no-shell")["findings"]}
    assert findings["service"]["result"] == "ok", findings["service"]
    assert "unit" not in findings


@scene
def killed_it_comes_back_and_leaves_nothing() -> None:
    """After `kill -9`, it is restarted after RestartSec, and no process of the first run survives."""
    configure(STUBBORN)
    install()
    first, family = main_pid(), connected_family()
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(family))
    until(lambda: main_pid() not in (0, first) and show("ActiveState")["ActiveState"] == "active")
    connected_family()
    assert show("NRestarts")["NRestarts"] == "1"


@scene
def killed_together_with_its_guardian_it_leaves_nothing_either() -> None:
    """The control group ends the servers because of KillMode=mixed."""
    configure(STUBBORN)
    install()
    first, family = main_pid(), connected_family()
    (guardian,) = (pid for pid in family if b"mcpd-guardian" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(guardian, signal.SIGKILL)
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(family))
    until(lambda: main_pid() not in (0, first) and show("ActiveState")["ActiveState"] == "active")


@scene
def the_first_client_starts_it() -> None:
    """Only the socket unit runs. A connection starts the service, and the request is answered."""
    install("--no-start")
    systemctl("start", "mcpd.socket")
    assert show("ActiveState")["ActiveState"] == "inactive"
    assert mcpctl("daemon", "status").returncode == 3
    assert show("ActiveState")["ActiveState"] == "inactive", "a status query does not start it"
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(90)
        client.connect(str(SOCKET))
        client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"mcpd/version","params":{}}\n')
        answer = json.loads(client.makefile("rb").readline())
    assert answer["result"]["pid"] == main_pid()


@scene
def stopped_in_order_it_leaves_the_socket_to_the_manager() -> None:
    """After a stop of only the service, the next client finds the same socket and starts the service."""
    install()
    connected_family()
    inode = SOCKET.stat().st_ino
    for _ in range(3):
        systemctl("stop", "mcpd.service")
        assert show("Result")["Result"] == "success"
        assert SOCKET.stat().st_ino == inode
        assert mcpctl_json("status")["servers"]
        assert SOCKET.stat().st_ino == inode
    SOCKET.unlink()  # systemd does not notice
    status = mcpctl("daemon", "status")
    assert (status.returncode, "its socket was removed" in status.stdout) == (3, True)
    assert mcpctl("status").stderr.endswith("next: mcpctl daemon restart\n")
    assert mcpctl("daemon", "restart").returncode == 0
    assert mcpctl_json("status")["servers"]


@scene
def a_client_starts_the_service_when_even_the_socket_is_down() -> None:
    """After `mcpctl daemon stop`, the client starts it through the unit. MCPD_NO_START forbids it."""
    install()
    assert mcpctl("daemon", "stop").returncode == 0
    assert show("ActiveState")["ActiveState"] == "inactive"
    assert mcpctl("status", MCPD_NO_START="1").returncode == 3
    assert show("ActiveState")["ActiveState"] == "inactive"
    done = mcpctl("status")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "systemctl --user start mcpd" in done.stderr
    assert mcpctl_json("daemon", "status")["started_by"] == "systemd"


@scene
def reload_reads_the_configuration_again() -> None:
    """An unchanged server keeps its process. An invalid file fails the reload, and the service goes on."""
    install()
    connected_family()
    pid, daemon = server("plain")["pid"], main_pid()
    configure({**POLITE, "second": POLITE["plain"]})
    systemctl("reload", "mcpd.service")
    until(lambda: server("second")["status"] == "connected")
    configure_text("{ this is not JSON")
    refused = subprocess.run(["systemctl", "--user", "reload", "mcpd"], capture_output=True, timeout=120)
    assert refused.returncode != 0
    assert (show("ActiveState")["ActiveState"], main_pid()) == ("active", daemon)
    configure(POLITE)
    systemctl("reload", "mcpd.service")
    assert server("plain")["pid"] == pid


@scene
def a_hung_daemon_is_replaced_by_the_watchdog() -> None:
    """SIGSTOP simulates a hung event loop: the daemon is killed and restarted, and its servers reconnect."""
    configure(STUBBORN)
    install("--no-start")
    override("[Service]\nWatchdogSec=10")
    systemctl("start", "mcpd.service")
    first, family = main_pid(), connected_family()
    fed = {show("WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"]}
    until(lambda: len(fed | {show("WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"]}) > 1)
    assert main_pid() == first, "a running daemon notifies the watchdog"
    os.kill(first, signal.SIGSTOP)
    until(lambda: main_pid() not in (0, first) and show("ActiveState")["ActiveState"] == "active")
    until(lambda: not alive(family))
    connected_family()


@scene
def stopping_leaves_no_process() -> None:
    """The daemon stops its servers in order, and KillMode=mixed kills the remaining processes of the
    group."""
    configure(STUBBORN)
    install()
    family = connected_family()
    group = show("ControlGroup")["ControlGroup"]
    systemctl("stop", "mcpd.service")
    assert not alive(family)
    assert not alive(group_members(group))
    assert show("Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}


@scene
def the_http_port_stays_open_without_a_daemon() -> None:
    """systemd stores it: clients wait during a restart and after a crash. A new address replaces it."""
    first, second = free_port(), free_port()
    configure_http(first)
    install()
    assert healthy(first)
    before = main_pid()
    os.kill(before, signal.SIGKILL)
    until(lambda: not alive([before]))
    assert healthy(first)
    assert main_pid() != before
    assert mcpctl("daemon", "restart").returncode == 0
    assert healthy(first)
    assert show("NFileDescriptorStore") == {"NFileDescriptorStore": "1"}
    configure_http(second)
    systemctl("restart", "mcpd.service")
    assert healthy(second)
    assert show("NFileDescriptorStore") == {"NFileDescriptorStore": "1"}
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", first)) != 0
    configure(POLITE)
    systemctl("restart", "mcpd.service")
    assert show("NFileDescriptorStore") == {"NFileDescriptorStore": "0"}
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", second)) != 0


@scene
def a_broken_configuration_is_not_retried() -> None:
    """With exit status 2, the service fails once with a message and does not restart."""
    configure_text("{ this is not JSON")
    done = mcpctl("daemon", "install")
    assert done.returncode == 2
    assert "not valid JSON" in done.stderr
    shown = show("ActiveState", "NRestarts", "ExecMainStatus")
    assert shown == {"ActiveState": "failed", "NRestarts": "0", "ExecMainStatus": "2"}
    assert mcpctl("daemon", "status").returncode == 3
    systemctl("start", "mcpd.socket")
    for _ in range(2):  # once through the socket, which fails because of it, and once through mcpctl
        done = mcpctl("status")
        assert (done.returncode, "not valid JSON" in done.stderr) == (2, True)
    configure(POLITE)
    assert mcpctl("daemon", "start").returncode == 0


@scene
def a_service_that_cannot_run_is_explained() -> None:
    """systemctl says only that resources are unavailable. Every command says what to look at."""
    install()
    override("[Service]\nRestart=no\nEnvironmentFile=/nonexistent/mcpd.env")
    step = "systemctl --user cat mcpd   (correct the setting that it names), then: mcpctl daemon restart"
    systemctl("stop", "mcpd.service")
    for words in (("status",), ("daemon", "restart"), ("daemon", "start"), ("status",)):
        done = mcpctl(*words)  # the first one through the socket unit
        assert done.returncode == 3
        assert "mcpd was not started: the service failed: resources" in done.stderr, done.stderr
        assert f"next: {step}\n" in done.stderr, done.stderr
    status = json.loads(mcpctl("daemon", "status", "--json").stdout)
    assert status["reason"].startswith("resources")
    assert status["next"] == step
    findings = {each["check"]: each for each in mcpctl_json("doctor", "--no-shell")["findings"]}
    assert findings["service"]["next"] == step


@scene
def a_restart_with_a_broken_configuration_is_refused() -> None:
    """The running service keeps serving; the error lists the problems."""
    install()
    before = main_pid()
    configure_text("{ this is not JSON")
    until(lambda: mcpctl_json("status")["config"]["problems"])
    done = mcpctl("daemon", "restart")
    assert done.returncode == 2
    assert "was not restarted" in done.stderr
    assert main_pid() == before


@scene
def a_restart_passes_the_environment_of_the_manager() -> None:
    """A variable that is set since the service started is no error, one that only mcpctl has is."""
    install()
    configure({"plain": {**POLITE["plain"], "env": {"T": "${NOT_YET_SET}"}}})
    until(lambda: mcpctl_json("status")["config"]["problems"])
    assert mcpctl("daemon", "restart", NOT_YET_SET="x").returncode == 2
    systemctl("set-environment", "NOT_YET_SET=a b")
    assert mcpctl("daemon", "restart").returncode == 0
    until(lambda: server("plain")["status"] == "connected")


@scene
def errors_in_the_configuration_do_not_stop_the_service() -> None:
    """At the next login, a broken entry affects only itself, and an unreadable file is the last valid one."""
    install()
    broken_entry = json.dumps({"mcpServers": {**POLITE, "bad": {"comand": "x"}}})
    for text in (broken_entry, "{ this is not JSON"):
        configure_text(text)
        systemctl("restart", "mcpd.service")
        until(lambda: server("plain")["status"] == "connected")
        assert mcpctl_json("status")["config"]["problems"]
        assert mcpctl("config", "validate").returncode == 2


@scene
def a_daemon_in_the_background_makes_way_for_the_service() -> None:
    """The installation first stops a running daemon, so that the unit owns the socket."""
    assert mcpctl("daemon", "start").returncode == 0
    background = mcpctl_json("daemon", "status")
    assert background["started_by"] == "background"
    install()
    assert not os.path.exists(f"/proc/{background['pid']}") or zombie(background["pid"])
    assert mcpctl_json("daemon", "status")["started_by"] == "systemd"


@scene
def uninstalled_nothing_of_it_is_left() -> None:
    """No unit, link, service or directory of the socket remains."""
    install()
    family = connected_family()
    assert mcpctl("daemon", "uninstall").returncode == 0
    assert not alive(family)
    left = [path for path in (HOME / ".config/systemd").rglob("*") if not path.is_dir()]
    assert left == []
    assert not SOCKET.parent.exists()
    assert show("LoadState", "ActiveState") == {"LoadState": "not-found", "ActiveState": "inactive"}


# ---- helpers -------------------------------------------------------------------------------------


def configure(servers: object) -> None:
    configure_text(json.dumps({"mcpServers": servers}))


def configure_http(port: int) -> None:
    configure_text(json.dumps({"mcpServers": POLITE, "settings": {"http": f"127.0.0.1:{port}"}}))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def healthy(port: int) -> bool:
    """Send a request, which waits for the daemon if there is none. Raises OSError if the port is closed."""
    url = f"http://127.0.0.1:{port}/health"
    with urllib.request.urlopen(url, timeout=90) as answer:
        return bool(answer.status == 200)


def configure_text(text: str) -> None:
    path = HOME / ".config" / "mcpd" / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def install(*options: str, **environ: str) -> None:
    done = mcpctl("daemon", "install", *options, **environ)
    assert done.returncode == 0, done.stdout + done.stderr + manager_log()


def override(text: str) -> None:
    path = HOME / ".config/systemd/user/mcpd.service.d/test.conf"
    path.parent.mkdir()
    path.write_text(text + "\n")
    systemctl("daemon-reload")


def mcpctl(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MCPCTL, *argv], env={**os.environ, **environ}, capture_output=True, text=True, timeout=120
    )


def mcpctl_json(*argv: str) -> Any:
    done = mcpctl(*argv, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def systemctl(*words: str) -> str:
    done = subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + manager_log()
    return done.stdout


def show(*names: str) -> dict[str, str]:
    lines = systemctl("show", "mcpd.service", "--property=" + ",".join(names)).splitlines()
    return dict(line.split("=", 1) for line in lines)


def main_pid() -> int:
    return int(show("MainPID")["MainPID"])


def server(name: str) -> Any:
    (found,) = (entry for entry in mcpctl_json("status")["servers"] if entry["name"] == name)
    return found


def connected_family() -> list[int]:
    """Wait until every server is connected; return all processes of the service except the daemon."""
    until(lambda: all(entry["status"] == "connected" for entry in mcpctl_json("status")["servers"]))
    group = show("ControlGroup")["ControlGroup"]
    servers = 4 if any(entry["name"] == "stubborn" for entry in mcpctl_json("status")["servers"]) else 1
    until(lambda: len(group_members(group)) >= 1 + 1 + servers)  # the daemon, its guardian and the servers
    return [pid for pid in group_members(group) if pid != main_pid()]


def group_members(group: str) -> list[int]:
    """Return the processes of a control group, for any of the three cgroup layouts."""
    for tree in ("systemd", "unified", "."):
        path = Path("/sys/fs/cgroup", tree, group.lstrip("/"), "cgroup.procs")
        try:
            if pids := [int(line) for line in path.read_text().split()]:
                return pids
        except FileNotFoundError:
            continue
    return []


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}") and not zombie(pid)]


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


def until(condition: Callable[[], object], patience: float = 90.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, manager_log()
        time.sleep(0.02)


def manager_log() -> str:
    shown = subprocess.run(["systemctl", "--user", "status", "mcpd"], capture_output=True, text=True).stdout
    return shown + "\n" + (RUNTIME / "manager.log").read_text()[-4000:]


if __name__ == "__main__":
    configure(POLITE)
    SCENES[sys.argv[1]]()
