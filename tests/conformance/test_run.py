"""Which outcomes count as passed, and which make `make conformance` fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.conformance import server_side
from tests.conformance.client_side import expected_failures, surprises, table
from tests.conformance.suite import Outcome, judged


def checks(out: Path, *statuses: str) -> Path:
    written: list[dict[str, Any]] = [
        {"id": f"c{number}", "status": status, "description": "what was looked at"}
        for number, status in enumerate(statuses)
    ]
    (out / "scenario-1").mkdir()
    (out / "scenario-1" / "checks.json").write_text(json.dumps(written))
    return out


@pytest.mark.parametrize(
    ("statuses", "status", "passed"),
    [
        (("SUCCESS", "INFO", "SKIPPED"), 0, True),
        (("SUCCESS", "FAILURE"), 1, False),
        (("SUCCESS", "WARNING"), 0, False),
        (("SKIPPED", "INFO"), 0, False),
        (("SUCCESS",), 1, False),
    ],
)
def test_scenario_passes_if_a_check_succeeds_and_none_fails(
    tmp_path: Path, statuses: tuple[str, ...], status: int, passed: bool
) -> None:
    """A warning is a failure. Scenarios with only skipped checks or a failed client have not passed."""
    assert judged("s", "2025-11-25", checks(tmp_path, *statuses), "", status).passed is passed


def test_scenario_that_hung_or_wrote_no_checks_has_not_passed(tmp_path: Path) -> None:
    """The outcome contains the reason."""
    assert judged("s", "2025-11-25", tmp_path, "", 0).complaints == ("nothing was proven",)
    assert judged("s", "2025-11-25", checks(tmp_path, "SUCCESS"), "it hung", -9).complaints == ("it hung",)


def test_only_surprises_are_failures() -> None:
    """Surprises are a failure that is not listed, and a success that is listed as a failure."""
    good = Outcome("good", "2025-11-25", 1, ())
    bad = Outcome("bad", "2025-11-25", 1, ("c1: wrong",))
    assert surprises([good, bad], frozenset({"bad"})) == []
    assert surprises([good, bad], frozenset()) == ["bad (2025-11-25): c1: wrong"]
    assert surprises([good, bad], frozenset({"good", "bad"})) == [
        "good (2025-11-25) passes: take it out of expected-failures.txt"
    ]
    assert "good        ok 1" in table([good, bad], frozenset())


def test_no_failure_is_expected() -> None:
    """A list of exceptions would hide failures."""
    assert expected_failures() == frozenset()


def row(direct: Outcome, through: Outcome, reference: str = "sdk2") -> server_side.Row:
    outcomes = {"direct": direct, "stdio": through}
    return server_side.Row(reference, direct.scenario, direct.revision, outcomes)


BOTH = Outcome("ping", "2025-11-25", 2, (), frozenset({"ping", "schema"}))
FAILED = Outcome("ping", "2025-11-25", 1, ("ping: no answer",), frozenset({"schema"}))


def test_check_that_passes_directly_must_pass_through_mcpd() -> None:
    """There is no list of exceptions, and a missing check counts as a failure."""
    assert server_side.surprises(row(BOTH, BOTH)) == []
    assert server_side.surprises(row(BOTH, FAILED)) == ["sdk2 ping (2025-11-25), stdio: ping: no answer"]
    less = Outcome("ping", "2025-11-25", 1, (), frozenset({"schema"}))
    assert server_side.surprises(row(BOTH, less)) == ["sdk2 ping (2025-11-25), stdio: no longer proven: ping"]
    json = attrs.evolve(less, unused=frozenset({"ping"}))
    assert server_side.surprises(row(BOTH, json)) == []
    assert server_side.notes(row(BOTH, json)) == [
        "sdk2 ping (2025-11-25), stdio: optional, and not used: ping"
    ]
    shown = server_side.table([row(BOTH, FAILED)])
    assert shown.splitlines() == [
        "sdk2 2025-11-25  direct  stdio",
        "ping               ok 2   FAIL",
        "passed              1/1    0/1",
    ]
