"""Files that a command's arguments name may be devices, pipes, or endless."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ctl.cli.arguments import parse_json_object
from ctl.cli.errors import UsageError
from ctl.cli.output import Output
from ctl.commands.add_remove_apply import read_definitions
from ctl.commands.import_ import parse_sources


@pytest.fixture(params=["/dev/zero", "/dev/urandom", "FIFO"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param != "FIFO":
        return str(request.param)
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


def test_device_or_fifo_is_refused_without_reading_it(endless: str) -> None:
    with pytest.raises(UsageError, match=f"cannot read {endless}: it is not a regular file"):
        parse_json_object(f"@{endless}")
    with pytest.raises(UsageError, match=f"cannot read {endless}: it is not a regular file"):
        read_definitions(endless, Output({}))
    with pytest.raises(UsageError, match=f"cannot read {endless}: it is not a regular file"):
        parse_sources((endless,))


def test_output_of_another_command_is_read_from_its_descriptor() -> None:
    """As in `mcpctl call TOOL@SERVER --args @<(command)`."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b'{"path": "/tmp"}')
        os.close(writing)
        assert parse_json_object(f"@/dev/fd/{reading}") == {"path": "/tmp"}
    finally:
        os.close(reading)
