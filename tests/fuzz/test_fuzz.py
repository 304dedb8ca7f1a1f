"""A short run of the fuzzer, and its promise to repeat any input. `make fuzz` runs it for longer."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.harness import Refused
from tests.fuzz import messages, run, target
from tests.fuzz.answers import http_response, stdio_output
from tests.fuzz.generate import die
from tests.fuzz.run import fuzz
from tests.fuzz.steps import Rules
from tests.fuzz.targets import lines
from tests.fuzz.world import world


@pytest.mark.slow
def test_random_input_stops_nobody(tmp_path: Path) -> None:
    report = fuzz(tmp_path, seed=1, seconds=15)
    assert not report.wrong, str(report)
    assert report.inputs.total() > 50, "only those of `warm_up`"


BUGGY = Path(__file__).with_name("buggy.py")
FOUND = (
    {
        "busy": "stops the daemon for",
        "wrong": "the bystander: call",
        "malformed": "not a message",
        "secret": "the secret 'env' is in the log",
    },
    {
        "slow": "the bystander waited for",
        "unanswered": "never answered",
        "memory": "memory has grown",
        "descriptor": "descriptors: ",
    },
    {"exception": "injected"},
    {"end": "the daemon has exited"},
)


@pytest.mark.slow
@pytest.mark.parametrize("bugs", FOUND, ids=",".join)
def test_bug_is_found(tmp_path: Path, bugs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    if "unanswered" in bugs:
        monkeypatch.setattr(target, "BOUND", 3.0)
    monkeypatch.setattr(run, "TRIES", 2)
    program = (sys.executable, str(BUGGY), ",".join(bugs))
    report = fuzz(tmp_path, 1, 0, "socket", 0, 20, program=program, most_wrong=100, patience=1.0)
    missing = [words for words in bugs.values() if not any(words in wrong for wrong in report.wrong)]
    assert not missing, f"{missing}: {report}"


@pytest.mark.slow
def test_rules_of_a_case_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "_rule", lambda self, dice: {"decision": "ask", "answer": "outside"})
    with world(tmp_path, seed=1) as here:
        Rules(here).send_all(range(10))
        here.daemon.wait_connected("odd")
        with suppress(Refused):  # any answer will do, because only a person would let it wait
            here.control.call("odd", "echo")


def test_case_is_determined_by_its_seed_and_number() -> None:
    request = {"id": 1, "method": "tools/call", "params": {"arguments": {"case": 1}}}

    def case(number: int) -> object:
        return (
            lines(die(7, "x", number)),
            stdio_output(die(7, "x", number), request),
            http_response(die(7, "x", number), request),
        )

    cases = [case(number) for number in range(50)]
    assert cases == [case(number) for number in range(50)]
    assert len(set(map(repr, cases))) == 50


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        (b'{"method":"mcpd/shutdown"}', False),
        (b'{"method":"\\u006dcpd/shutdown"}', False),
        (b'{"method":"\\u006dcpd/shutdown', False),
        (b'{"method":["mcpd/shutdown"]}', True),
        (b'{"method":"mcpd/call","params":{"server":"calm"}}', False),
        (b'{"method":"mcpd/tools","params":{"server":"calm"}}', True),
        (b'{"method":"mcpd/disable","params":{"server":"calm"}}', False),
        (b'{"method":"mcpd/disable","params":{"server":"odd"}}', True),
    ],
)
def test_no_case_stops_the_daemon_or_the_server_of_the_bystander(line: bytes, allowed: bool) -> None:
    assert messages.is_allowed(line) is allowed
