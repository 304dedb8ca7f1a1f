"""Which outcomes count as passed, and which make `make conformance` fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.conformance import server_side
from tests.conformance.client_side import expected_failures, surprises, table
from tests.conformance.references import OTHERS, REFERENCES
from tests.conformance.suite import Outcome, judged, left_behind
from tests.conformance.ways import EVERY_WAY, usual_ways


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


def test_server_by_others_may_fail_directly_but_nothing_more_through_mcpd() -> None:
    """Servers that we have written must not fail at all."""
    assert server_side.surprises(row(FAILED, BOTH)) == ["sdk2 ping (2025-11-25), direct: ping: no answer"]
    assert len(server_side.surprises(row(FAILED, FAILED))) == 2
    assert server_side.surprises(row(FAILED, BOTH, "everything1")) == []
    assert server_side.notes(row(FAILED, BOTH, "everything1")) == [
        "everything1 ping (2025-11-25), direct: fails without mcpd: ping: no answer"
    ]
    assert server_side.surprises(row(FAILED, FAILED, "everything1")) == []
    worse = attrs.evolve(FAILED, complaints=(*FAILED.complaints, "schema: wrong"), proven=frozenset())
    assert server_side.surprises(row(FAILED, worse, "everything1")) == [
        "everything1 ping (2025-11-25), stdio: schema: wrong"
    ]


def test_bridge_behind_supergateway_is_compared_with_the_server_behind_supergateway() -> None:
    outcomes = {"direct": BOTH, "superg.": FAILED, "sg-bridge stdio": FAILED}
    same = server_side.Row("sdk2", "ping", "2025-11-25", outcomes)
    assert server_side.surprises(same) == []
    outcomes = {"direct": BOTH, "superg.": BOTH, "sg-bridge stdio": FAILED}
    worse = server_side.Row("sdk2", "ping", "2025-11-25", outcomes)
    assert server_side.surprises(worse) == ["sdk2 ping (2025-11-25), sg-bridge stdio: ping: no answer"]


def test_each_front_is_tested_in_front_of_each_generation() -> None:
    """This also applies to short runs."""
    for reference in REFERENCES:
        usual = usual_ways(reference)
        assert set(usual) < set(EVERY_WAY)
        if reference.name in OTHERS:
            assert {way.rpartition(" ")[0] for way in usual} >= {"", "all", "bridge"}
            assert {way.rpartition(" ")[2] for way in usual} >= {"stdio", "http"}


def test_the_suite_names_its_directories_after_scenario_and_time(tmp_path: Path) -> None:
    """One run writes many directories, and only their names contain the scenario."""
    for name in (
        "server-ping-2026-11-21T21-37-44-371Z",
        "server-sep-2164-x-2026-11-21T21-37-44-999Z",
        "else",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "checks.json").write_text("[]")
    assert left_behind(tmp_path) == {
        "ping": tmp_path / "server-ping-2026-11-21T21-37-44-371Z",
        "sep-2164-x": tmp_path / "server-sep-2164-x-2026-11-21T21-37-44-999Z",
    }
