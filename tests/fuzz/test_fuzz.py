"""A short run of the fuzzer, and its promise to repeat any input. `make fuzz` runs it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import messages
from tests.fuzz.answers import http_response, stdio_output
from tests.fuzz.generate import die
from tests.fuzz.run import fuzz
from tests.fuzz.targets import lines


@pytest.mark.slow
def test_random_input_stops_nobody(tmp_path: Path) -> None:
    report = fuzz(tmp_path, seed=1, seconds=15)
    assert not report.wrong, str(report)
    assert report.inputs.total() > 100


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
