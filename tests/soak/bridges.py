"""Editors that call a tool through `mcpctl bridge` while mcpd and the server are killed.

The bridges start the next mcpd. Each call is answered once, and is executed as often as the editor was told:
no bridge sends a call again that may have been executed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import attrs

from ctl.daemon.process import daemon_pid
from tests.e2e.harness import (
    BOUND,
    Client,
    Json,
    assert_gone,
    impatient,
    private_environment,
    wait_until,
)
from tests.e2e.test_bridge import Editor, editor
from tests.processes import gone
from tests.soak import servers
from tests.soak.ledger import Outcome, judge, read_ledgers

WIDTH = 4
"""Calls that an editor has in flight."""
SERVER = "legacy-0"


@attrs.define
class BridgesReport:
    """The results of a run."""

    outcomes: list[tuple[str, Outcome]] = attrs.field(factory=list)
    errors: Counter[str] = attrs.field(factory=Counter)
    wrong: list[str] = attrs.field(factory=list)
    executed: int = 0
    killed: Counter[str] = attrs.field(factory=Counter)

    def __str__(self) -> str:
        outcomes = Counter(outcome.value for _, outcome in self.outcomes)
        return "\n".join(
            [
                f"{len(self.outcomes):,} calls: {dict(outcomes)}, errors {dict(self.errors)}, "
                f"{self.executed:,} in the ledger; killed: {dict(self.killed)}",
                *(f"WRONG: {each}" for each in self.wrong[:30]),
            ]
        )


def bridges(
    home: Path,
    *,
    calls: int = 3600,
    editors: int = 3,
    daemon_kills: int = 4,
    server_kills: int = 14,
    seconds: float = float("inf"),
    seed: int = 1,
) -> BridgesReport:
    """Make this many calls, or fewer if time runs out, and spread the kills over them."""
    report = BridgesReport()
    ledgers, config = home / "ledgers", home / "config" / "mcpd"
    for directory in (ledgers, config):
        directory.mkdir(parents=True)
    definitions = {
        name: {**definition, "restart": impatient()} for name, definition in servers.own(1, ledgers).items()
    }
    (config / "config.json").write_text(json.dumps({"mcpServers": definitions}))
    environ, end = private_environment(home), time.monotonic() + seconds
    with _stopped(str(home / "run" / "mcpd" / "mcpd.sock")) as socket, ExitStack() as stack:
        eds = [stack.enter_context(editor(environ, home, "--server", SERVER)) for _ in range(editors)]
        for ed in eds:
            ed.begin()
        progress = [0] * editors
        threads = stack.enter_context(ThreadPoolExecutor(editors))
        working = [
            threads.submit(_keep_calling, ed, number, calls // editors, end, progress, report)
            for number, ed in enumerate(eds)
        ]
        order = ["mcpd"] * daemon_kills + ["server"] * server_kills
        random.Random(seed).shuffle(order)
        for number, victim in enumerate(order):
            due = calls * (number + 1) // (len(order) + 1)
            while sum(progress) < due and not all(each.done() for each in working):
                threading.Event().wait(0.005)
            if not all(each.done() for each in working):
                _kill(victim, socket, report)
        for each in working:
            each.result(BOUND * 10)
        for ed in eds:
            if (code := ed.close()[0]) != 0:
                report.wrong.append(f"a bridge exited with {code}")
            if "Traceback" in (errors := ed.errors()):
                report.wrong.append(errors[-2000:])
    executed = read_ledgers(ledgers)
    report.executed = executed.total()
    report.wrong += judge(executed, report.outcomes)
    return report


def _keep_calling(
    ed: Editor, number: int, calls: int, end: float, progress: list[int], report: BridgesReport
) -> None:
    """Make the calls of one editor, and record the outcome of each."""
    made, pending = 0, dict[object, str]()
    while made < calls or pending:
        while len(pending) < WIDTH and made < calls and time.monotonic() < end:
            made += 1
            token = f"{SERVER}:editor-{number}:{made}"
            pending[made] = token
            tool = "look" if made % 2 else "run"
            ed.send(id=made, method="tools/call", params={"name": tool, "arguments": {"token": token}})
        if not pending:
            break
        message = ed.next()
        ed.heard.clear()
        if "method" in message:
            continue
        answered = pending.pop(message["id"], None)
        if answered is None:
            if not str(message["id"]).startswith("hello"):
                report.wrong.append(f"an answer to nothing: {json.dumps(message)[:300]}")
            continue
        report.outcomes.append((answered, _outcome(message, answered, report)))
        progress[number] += 1


def _outcome(message: Json, token: str, report: BridgesReport) -> Outcome:
    if "error" in message:
        data = message["error"].get("data") or {}
        report.errors[str(data.get("code"))] += 1
        if "may_have_run" not in data:
            report.wrong.append(f"{token}: {json.dumps(message['error'])[:300]}")
        return Outcome.UNKNOWN if data.get("may_have_run", True) else Outcome.NOT_RUN
    text = message["result"]["content"][0]["text"]
    if text != f"{SERVER} {token}":
        report.wrong.append(f"{token}: got {text[:300]!r}")
    return Outcome.ANSWERED


def _kill(victim: str, socket: str, report: BridgesReport) -> None:
    """Kill mcpd or the server, once there is one."""

    def killed() -> bool:
        pid = None
        if victim == "mcpd":
            pid = daemon_pid(socket)
        else:
            with suppress(OSError, EOFError), Client(socket) as client:
                pid = client.request("mcpd/status")["servers"][0]["pid"]
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            report.killed[victim] += 1
            return True
        return False

    wait_until(killed, lambda: f"there is no {victim} to kill")


@contextmanager
def _stopped(socket: str) -> Iterator[str]:
    """Stop the daemon in the end, and assert that no process of it is left."""
    try:
        yield socket
    finally:
        if (pid := daemon_pid(socket)) is not None:
            with Client(socket) as client:
                instance = client.request("mcpd/status")["daemon"]["instance"]
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: gone(pid), lambda: "the daemon does not stop")
            assert_gone(instance)
