"""The generated types of the control API, and their use."""

from __future__ import annotations

from pathlib import Path

from tests.test_docs import maker

CTL = Path(__file__).parent.parent.parent / "ctl"
TYPES = CTL / "api_types.pyi"


def test_generated_types_are_up_to_date() -> None:
    """If this fails, run `make docs`."""
    make = maker("make_api_types")
    assert TYPES.read_text() == make.module()
    assert make.STATUS_FILE.read_text() == make.status_module()
