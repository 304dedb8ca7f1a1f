"""A full disk: calls continue, stored data stays intact, and writes are retried."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.harness import BOUND, Json, Refused, fake, running, wait_until
from tests.faults.bystander import undisturbed
from tests.faults.disk import Disk, small_disk
from tests.stopwatch import stopwatch, within

pytestmark = pytest.mark.root

PROGRAMS = Path(sys.executable).parent


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


def on(disk: Disk) -> dict[str, str]:
    """Return an environment that stores all files on that disk."""
    names = {"STATE": "state", "CACHE": "cache", "CONFIG": "config"}
    return {f"XDG_{name}_HOME": str(disk.place / place) for name, place in names.items()}


def mcpctl(
    disk: Disk, environ: Mapping[str, str], *argv: str, said: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*disk.enter, sys.executable, "-m", "ctl", *argv],
        env={**environ, **on(disk)},
        input=said,
        capture_output=True,
        text=True,
        timeout=2 * BOUND,
    )


def saved_toggles(disk: Disk) -> Json:
    """Return the toggles in the state file; empty before it is written."""
    try:
        saved = (disk.path / "state/mcpd/state.json").read_bytes()
    except FileNotFoundError:
        return {}
    toggles: Json = json.loads(saved).get("toggles", {})
    return toggles


def test_daemon_serves_with_a_full_disk_and_saves_within_five_seconds_of_free_space(
    tmp_path: Path, disk: Disk
) -> None:
    """No call fails. Log and history lines are dropped and counted, and no toggle and no secret is lost."""
    secrets = disk.path / "config/mcpd/secrets.json"
    secrets.parent.mkdir(parents=True, mode=0o700)
    secrets.write_text(json.dumps({"OLD": "old-secret-value"}))
    secrets.chmod(0o600)
    (tmp_path / "daemon.log").symlink_to(disk.path / "daemon.log")
    servers = {"calm": fake(), "loud": fake(env={"IT": "${secret:OLD}"}), "off": fake()}
    config = json.dumps({"mcpServers": servers})
    (disk.path / "config.json").write_text(config)
    flags = ("--config", str(disk.place / "config.json"))
    program = [*disk.enter, str(PROGRAMS / "mcpd")]
    with running(tmp_path, {}, *flags, environ=on(disk), program=program) as daemon:
        daemon.wait_connected(*servers)
        client = daemon.client()
        client.request("mcpd/disable", server="off")
        wait_until(lambda: saved_toggles(disk) == {"off": False}, lambda: str(saved_toggles(disk)))
        before = secrets.read_bytes()
        disk.fill()
        with undisturbed(daemon, "calm", slowest=1.0):
            client.call("loud", "stderr", {"lines": 2000})
            client.request("mcpd/enable", server="off")
            client.request("mcpd/disable", server="loud")
            client.request("mcpd/enable", server="loud")
            client.request("mcpd/reconnect", server="loud", wait=BOUND)  # its secret is read from this file
            assert client.call("loud", "echo")["success"]
            refusal = mcpctl(
                disk, {**daemon.environ, "MCPD_SOCKET": daemon.socket}, "secret", "set", "NEW", said="new"
            )
            assert refusal.returncode == 1, refusal
            assert "secrets.json: No space left on device\nnext: free space on its disk" in refusal.stderr
            refusal = mcpctl(disk, {**daemon.environ, "MCPD_SOCKET": daemon.socket}, "remove", "off", "--yes")
            assert refusal.returncode == 1, refusal
            assert refusal.stderr.startswith("error: off was not removed: cannot write "), refusal
            for _ in range(100):  # a file has space up to the end of its last page
                client.request("mcpd/disconnect", server="off")
                client.request("mcpd/connect", server="off")
            (warning,) = client.request("mcpd/disable", server="off")["warnings"]
            assert "state.json: No space left on device, so what you enable" in warning
            assert client.request("mcpd/enable", server="off")["warnings"] == [warning]
            assert client.request("mcpd/status")["daemon"]["warnings"] == [warning]
            wait_until(lambda: client.request("mcpd/history")["dropped"] > 0, lambda: "nothing is dropped")
            with pytest.raises(
                Refused, match=r"config\.json: No space left on device .*free space on its disk"
            ):
                client.request("mcpd/add", server="new", definition=fake(env={"A": "x" * 5000}), save=True)
            assert (disk.path / "config.json").read_text() == config
            wait_until(
                lambda: any("log lines could not be" in word for word in daemon.status("loud")["warnings"]),
                lambda: str(daemon.status("loud")),
            )
        assert secrets.read_bytes() == before
        assert saved_toggles(disk) == {"off": False}  # the complete old file
        disk.make_room()
        with stopwatch() as watch:
            wait_until(
                lambda: saved_toggles(disk) == {"off": True, "loud": True}, lambda: str(saved_toggles(disk))
            )
            assert within(watch.seconds, 5.0)
        wait_until(lambda: not client.request("mcpd/status")["daemon"]["warnings"], lambda: "still unsaved")
        written = (disk.path / "state/mcpd/history.jsonl").stat().st_size
        client.call("loud", "stderr", {"text": "there is room again"})
        client.request("mcpd/reconnect", server="calm", wait=BOUND)
        log = disk.path / "state/mcpd/logs/loud.log"
        wait_until(lambda: b"there is room again" in log.read_bytes(), lambda: "no log")
        assert all(len(line.split(b" ")[0]) == 24 for line in log.read_bytes().splitlines()), "a torn line"
        wait_until(
            lambda: (disk.path / "state/mcpd/history.jsonl").stat().st_size > written, lambda: "no history"
        )
        set_now = mcpctl(
            disk, {**daemon.environ, "MCPD_SOCKET": daemon.socket}, "secret", "set", "NEW", said="new"
        )
        assert set_now.returncode == 0, set_now.stderr
        assert json.loads(secrets.read_bytes()) == {"OLD": "old-secret-value", "NEW": "new"}
        client.request("mcpd/disable", server="off")
        wait_until(lambda: saved_toggles(disk)["off"] is False, lambda: "no toggle")
        wait_until(lambda: "log lines were lost" in daemon.log, lambda: daemon.log)


def test_a_daemon_starts_and_stops_on_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    """The socket is on the disk, too. A toggle made just before the stop is saved when there is space."""
    disk.path.chmod(0o700)
    (disk.path / "run").mkdir(mode=0o700)
    for name in ("state", "cache", "run"):
        (disk.path / name / "mcpd").mkdir(parents=True, mode=0o700)
    disk.fill()
    with running(
        tmp_path, {"calm": fake()}, environ=on(disk), program=[*disk.enter, str(PROGRAMS / "mcpd")]
    ) as daemon:
        daemon.wait_connected("calm")
        assert daemon.client().call("calm", "echo")["success"]
        daemon.client().request("mcpd/disable", server="calm")
        disk.make_room()
        assert daemon.stop() == 0
    assert saved_toggles(disk) == {"calm": False}


def test_daemon_with_unwritable_output_works_and_exits_with_0(tmp_path: Path) -> None:
    """stdout and stderr are /dev/full, at DEBUG level."""
    (tmp_path / "daemon.log").symlink_to("/dev/full")
    with running(tmp_path, {"calm": fake()}, "--debug") as daemon:
        daemon.wait_connected("calm")
        with undisturbed(daemon, "calm", slowest=1.0):
            for number in range(200):
                assert daemon.client().call("calm", "echo", {"n": number})["success"]
        assert daemon.stop() == 0
