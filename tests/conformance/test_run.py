"""What counts as passed, and what makes `make conformance` fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.run import Outcome, expected_failures, judged, surprises, table


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
def test_a_scenario_passes_when_something_was_right_and_nothing_wrong(
    tmp_path: Path, statuses: tuple[str, ...], status: int, passed: bool
) -> None:
    """A warning is wrong; what was only skipped proves nothing; so does a client that failed afterwards."""
    assert judged("s", "2025-11-25", checks(tmp_path, *statuses), "", status).passed is passed


def test_a_scenario_that_hung_or_left_nothing_behind_has_not_passed(tmp_path: Path) -> None:
    """And says so."""
    assert judged("s", "2025-11-25", tmp_path, "", 0).complaints == ("nothing was proven",)
    assert judged("s", "2025-11-25", checks(tmp_path, "SUCCESS"), "it hung", -9).complaints == ("it hung",)


def test_only_surprises_are_failures() -> None:
    """A failure that is not listed, and a success that is listed as a failure."""
    good = Outcome("good", "2025-11-25", 1, ())
    bad = Outcome("bad", "2025-11-25", 1, ("c1: wrong",))
    assert surprises([good, bad], frozenset({"bad"})) == []
    assert surprises([good, bad], frozenset()) == ["bad (2025-11-25): c1: wrong"]
    assert surprises([good, bad], frozenset({"good", "bad"})) == [
        "good (2025-11-25) passes: take it out of expected-failures.txt"
    ]
    assert "good        ok 1" in table([good, bad], frozenset())


def test_only_what_needs_a_login_is_expected_to_fail() -> None:
    """The list is not a place to hide things in."""
    assert expected_failures()
    assert all(name.startswith("auth/") for name in expected_failures())
