"""`mcpctl --host`: the daemon of another machine over ssh, with a real sshd, and links that are cut."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd import __version__
from tests.e2e.harness import BOUND, fake
from tests.e2e.laptop import ROOT, Laptop, other_machine
from tests.e2e.test_bridge import APPENDER, Editor, editor
from tests.e2e.test_doctor import mcpctl
from tests.processes import wait_until
from tests.stopwatch import stopwatch, within


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    with other_machine(tmp_path) as made:
        yield made


def on_laptop(laptop: Laptop, *argv: str) -> subprocess.CompletedProcess[str]:
    return mcpctl(laptop.here, "--host", "laptop", *argv)


def begin(laptop: Laptop, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ctl", "--host", "laptop", *argv],
        env={**laptop.here, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_commands_use_the_daemon_of_the_other_machine(laptop: Laptop, tmp_path: Path) -> None:
    """With the exit codes and output that they have there. What is for one machine only refuses."""
    laptop.configure({"fake": fake()})
    refused = on_laptop(laptop, "--no-start", "status")
    assert refused.returncode == 3
    assert "laptop: mcpd is not running at" in refused.stderr
    assert on_laptop(laptop, "wait", "fake").returncode == 0  # starts it
    status = json.loads(on_laptop(laptop, "status", "--json").stdout)
    assert status["daemon"]["socket"] == f"{laptop.home}/run/mcpd/mcpd.sock"
    assert not (tmp_path / "run/mcpd/mcpd.sock").exists()
    assert "echo" in on_laptop(laptop, "tools", "fake").stdout
    (tmp_path / "arguments.json").write_text('{"text": "from here"}')
    called = on_laptop(laptop, "call", "echo@fake", "--args", f"@{tmp_path}/arguments.json")
    assert (called.returncode, "from here" in called.stdout) == (0, True), called
    unknown = on_laptop(laptop, "status", "nope")
    assert unknown.returncode == 5
    assert on_laptop(laptop, "wait", "fake", "--host=laptop").returncode == 0
    for command in ("daemon stop", "config path", "install zed", "edit"):
        local = on_laptop(laptop, *command.split())
        assert local.returncode == 2
        assert f"ssh -t laptop mcpctl {command.removesuffix(' zed')}" in local.stderr
    with_option = mcpctl(laptop.here, "--host", "-oProxyCommand=touch /tmp/x", "status")
    assert (with_option.returncode, "is not a host" in with_option.stderr) == (2, True)
    relative = on_laptop(laptop, "add", "x", "--cwd", "src", "--", "server")
    assert (relative.returncode, "absolute path on laptop" in relative.stderr) == (2, True)


def test_a_cut_link_ends_commands_with_what_may_have_run(laptop: Laptop) -> None:
    """As if the daemon had gone, and the daemon notices."""
    laptop.configure({"fake": fake()})
    assert on_laptop(laptop, "wait", "fake").returncode == 0
    logs = begin(laptop, "logs", "fake", "--follow")
    assert on_laptop(laptop, "call", "stderr@fake", "text=written").returncode == 0
    assert logs.stdout is not None
    while "written" not in logs.stdout.readline():
        assert logs.poll() is None
    call = begin(laptop, "call", "drop@fake")

    def in_flight() -> int:
        status = json.loads(on_laptop(laptop, "status", "fake", "--json").stdout)
        return int(status["server"]["in_flight"])

    wait_until(lambda: in_flight() == 1)
    laptop.cut()
    for command in (logs, call):
        _, errors = command.communicate(timeout=BOUND)
        assert command.returncode == 3
        assert "the ssh connection to laptop broke" in errors
        assert ("may have run" in errors) == (command is call)
    wait_until(lambda: in_flight() == 0)


def test_what_is_missing_on_the_other_machine_is_said(laptop: Laptop) -> None:
    """Programs that are not there, older ones, other versions, and a configuration that is invalid."""
    (laptop.home / "config/mcpd").mkdir(parents=True)
    (laptop.home / "config/mcpd/config.json").write_text("{")
    invalid = on_laptop(laptop, "status", "--json")
    error = json.loads(invalid.stderr)["error"]
    assert (invalid.returncode, error["code"], bool(error["problems"])) == (2, "bad_spec", True)
    assert error["message"].startswith("laptop: ")
    laptop.configure({})
    program = laptop.home / ".local/bin/mcpctl"
    laptop.install_mcpctl("import mcpd; mcpd.__version__ = '99.0'")
    other = on_laptop(laptop, "status")
    assert f"laptop has mcpd 99.0, and this is {__version__}" in other.stderr
    laptop.install_mcpctl("import sys; sys.argv[-1] = 'no-such-command'")
    old = on_laptop(laptop, "status")
    assert (old.returncode, "is too old for --host" in old.stderr) == (3, True)
    program.unlink()
    missing = on_laptop(laptop, "status", "--json")
    assert missing.returncode == 3
    assert "mcpctl was not found on laptop" in json.loads(missing.stderr)["error"]["message"]
    with editor(laptop.here, laptop.home, "--host", "laptop") as ed:  # does not wait for another attempt
        answers = (ed.ask(key, "tools/list")["error"]["message"] for key in range(10))
        assert any("was not found on laptop" in each for each in answers)
        assert ed.close()[0] == 0
    laptop.is_down = True
    down = on_laptop(laptop, "status")
    assert (down.returncode, "cannot connect to laptop with ssh" in down.stderr) == (3, True)
    absent = mcpctl({**laptop.here, "PATH": "/nowhere"}, "--host", "laptop", "status")
    assert (absent.returncode, "cannot run ssh" in absent.stderr) == (3, True)


def succeed(ed: Editor, key: str, name: str, **arguments: str) -> None:
    """Call until an answer is a result."""
    for attempt in range(10):
        if "result" in ed.ask(f"{key} {attempt}", "tools/call", name=name, arguments=arguments):
            return
    raise AssertionError(ed.heard[-5:])


CUTS = 10
PROMISED = 10.0
"""Seconds after which nothing waits any more once the link is back."""


@pytest.mark.slow
def test_the_link_is_cut_ten_times_in_a_session(laptop: Laptop) -> None:
    """Each call is answered: with its result, or whether it may have run. None runs twice."""
    written = laptop.home / "written"
    code = APPENDER.replace(
        "if key is not None", 'if key is not None and params.get("arguments") != {"line": "held"}'
    )
    server = {"command": sys.executable, "args": ["-I", "-S", "-c", code, str(written)]}
    laptop.configure({"a": server})
    asked: dict[str, str] = {}
    with editor(laptop.here, laptop.home, "--host", "laptop", "--server", "a") as ed, stopwatch() as watch:
        ed.begin()
        succeed(ed, "first", "append", line="first")

        def send(name: str, line: str = "") -> None:
            asked[name] = line or name
            ed.send(
                id=name, method="tools/call", params={"name": "append", "arguments": {"line": asked[name]}}
            )

        for cut in range(CUTS):
            send(f"{cut} held", "held")  # never answered by the server
            for number in range(5):
                send(f"{cut} before {number}")
            ed.answer(f"{cut} before 4")  # so that the server has run the first
            for number in range(5):
                send(f"{cut} during {number}")
            laptop.is_down = cut % 2 == 1
            laptop.cut()
            for number in range(5):
                send(f"{cut} after {number}")
            assert ed.answer(f"{cut} held")["error"]["data"]["may_have_run"] is True
            if laptop.is_down:
                wait_until(lambda was=laptop.tries: laptop.tries > was)  # type: ignore[misc]
                laptop.is_down = False
            watch.restart()
            for name in asked:
                ed.answer(name)
            assert within(watch.seconds, PROMISED)
            succeed(ed, f"{cut} last", "append", line="last")
            assert within(watch.seconds, PROMISED)
        assert mcpctl(laptop.environ, "daemon", "stop").returncode == 0
        succeed(ed, "started again", "append", line="last")
        assert laptop.has_connections()
        assert ed.close()[0] == 0
        wait_until(lambda: not laptop.has_connections())
    answers = Counter(message["id"] for message in ed.heard if "method" not in message)
    assert [name for name in asked if answers[name] != 1] == []
    ran = Counter(written.read_text().splitlines())
    assert ran["held"] == CUTS
    for message in ed.heard:
        line = asked.get(str(message.get("id")), "held")
        if line == "held":
            continue
        if "result" in message:
            assert ran[line] == 1, message
        else:
            assert ran[line] <= message["error"]["data"]["may_have_run"], message


@pytest.mark.slow
def test_a_silent_link_is_given_up(laptop: Laptop) -> None:
    """The other machine was suspended, or lost its network: ssh notices, and the bridge connects again."""
    laptop.configure({"fake": fake()})
    with editor(laptop.here, laptop.home, "--host", "laptop", "--server", "fake") as ed, stopwatch() as watch:
        ed.begin()
        ed.send(id="held", method="tools/call", params={"name": "drop", "arguments": {}})
        assert "result" in ed.ask("echo", "tools/call", name="echo", arguments={})
        watch.restart()
        laptop.signal_connections(signal.SIGSTOP)
        assert ed.answer("held")["error"]["data"]["may_have_run"] is True
        assert within(watch.seconds, 20.0)
        succeed(ed, "again", "echo")
