"""The everything-servers of the Python SDK, and what their clients check when several share one.

Each client answers every question with its own name, and expects every answer, question, progress and log
line that belongs to its calls, and none that belongs to others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop import peers, sharing
from tests.interop.clients.drivers import ROOT, Call, Json, stdio
from tests.interop.clients.job import Report
from tests.interop.peers import made

MODERN = "2026-07-28"
LEGACY_CHECKS, MODERN_CHECKS = 14, 10
"""The number of checks for each client of an era."""
_RUN = "from mcp_everything_server.server import mcp; mcp.run()"
_SERVE = "from mcp_everything_server.server import main; main()"
_STEPS = [f"Completed step {done} of 100" for done in (0, 50, 100)]
_LINES = [f"Tool {what}" for what in ("execution started", "processing data", "execution completed")]
_FORM, _NAME, _COLOR = "Please provide user information", "What is your name?", "favorite color"


@contextmanager
def everything(way: str, generation: int = 2) -> Iterator[Json]:
    """Yield a definition of the server, which is started by mcpd or runs over HTTP. That of the second
    generation of the SDK speaks both eras.
    """
    venv = ".venv" if generation == 2 else ".venv-mcp1"
    place = ROOT / ".everything" / venv
    if not place.exists():
        pytest.skip(f"{place} is not there: `make interop` makes it")
    python = sys.executable if generation == 2 else made(venv)
    environ = {"PYTHONPATH": str(place)}
    if way == "stdio":
        yield stdio(python, "-c", _RUN, environ=environ)
        return
    port = peers.free_port()
    with peers.listening([python, "-c", _SERVE, "--port", str(port)], port, environ):
        yield {"url": f"http://127.0.0.1:{port}/mcp"}


def calls(name: str, *, modern: bool) -> list[Call]:
    """Return the calls that a client makes at the same time. The tools ask in the way of the client's era."""
    common: list[Call] = [
        ("test_simple_text", {}),
        ("test_tool_with_progress", {}),
        ("test_tool_with_logging", {}),
    ]
    if modern:
        prefix = "test_input_required_result"
        return [*common, *((f"{prefix}_{kind}", {}) for kind in ("elicitation", "sampling", "multi_round"))]
    return [
        *common,
        ("test_sampling", {"prompt": f"{name} samples"}),
        ("test_elicitation", {"message": f"{name} elicits"}),
        ("test_elicitation_sep1034_defaults", {}),
        ("test_error_handling", {}),
    ]


def checks(name: str, report: Report, *, modern: bool, certain_logs: bool, may_miss: bool) -> dict[str, bool]:
    """Return what was checked, and whether it was right.

    `certain_logs`: whether the log lines can be assigned to a client. On stdio, a server does not say to
    which call a line belongs, so that each client with a call in progress gets it. `may_miss`: whether
    notifications may be missing. The TypeScript SDK drops progress that it reads together with the answer.
    A modern client has no open request while it answers a question of a legacy server, which may be asked in
    any of its calls.
    """
    results = dict(zip((tool for tool, _ in calls(name, modern=modern)), report.texts, strict=True))
    logged = _are(_LINES, report.logs, may_miss) if certain_logs else set(report.logs) == set(_LINES)
    progress = [
        line for line in report.progress if not line.startswith("Fulfilling ")
    ]  # of the library itself
    common = {
        "it lists the tools": {"test_simple_text", "test_reconnection"} <= {*report.tools},
        "its call is answered": results["test_simple_text"] == "This is a simple text response for testing.",
        "its progress": _are(_STEPS, progress, may_miss),
        "its log lines": logged,
    }
    return common | (_of_rounds(name, report, results) if modern else _of_a_session(name, report, results))


def _are(expected: Sequence[str], found: Sequence[str], may_miss: bool) -> bool:
    return found == [line for line in expected if line in found or not may_miss]


def _of_a_session(name: str, report: Report, results: Mapping[str, str]) -> dict[str, bool]:
    asked = [question for question in report.asked if question != "roots"]
    form = results["test_elicitation_sep1034_defaults"]
    return {
        "its answer to sampling": results["test_sampling"] == f"LLM response: {name}",
        "its answer to elicitation": results["test_elicitation"]
        == f'User response: action=accept, content={{"response":"{name}"}}',
        "its answer to a form": f'"name":"{name}"' in form,
        "the defaults of a form": '"age":30,"score":95.5,"status":"active","verified":true' in form,
        "it is asked for sampling once": asked.count(f"{name} samples") == 1,
        "it is asked once": asked.count(f"{name} elicits") == 1,
        "it is shown the form once": asked.count(_FORM) == 1,
        "it is asked nothing else": len(asked) == 3,
        "the error of its tool": "intentionally returns an error" in results["test_error_handling"],
        "only this tool fails": report.failed == [False] * 6 + [True],
    }


def _of_rounds(name: str, report: Report, results: Mapping[str, str]) -> dict[str, bool]:
    prefix = "test_input_required_result"
    return {
        "its answer to elicitation": results[f"{prefix}_elicitation"] == f"Hello, {name}!",
        "its answer to sampling": results[f"{prefix}_sampling"] == f"Model said: {name}",
        "its answers in two rounds": results[f"{prefix}_multi_round"] == f"{name} likes {name}.",
        "it is asked each question once": [
            sum(part in question for question in report.asked)
            for part in (_NAME, "capital of France", _COLOR)
        ]
        == [2, 1, 1],
        "it is asked nothing else": len(report.asked) == 4,
        "no tool fails": not any(report.failed),
    }


def check_all(
    users: sharing.Users, home: Path, *, modern: Mapping[str, bool], certain_logs: bool, generation: int = 2
) -> list[str]:
    """Let all clients use the server at the same time. Return what was wrong. A server of the first
    generation asks all clients in the legacy way.
    """
    in_rounds = {name: is_modern and generation == 2 for name, is_modern in modern.items()}
    wanted = {name: calls(name, modern=in_rounds[name]) for name in users}
    wrong, count = [], 0
    for name, report in sharing.all_at_once(users, wanted, home).items():
        assert (report.protocol == MODERN) is modern[name], f"{name} speaks {report.protocol}"
        may_miss = users[name][0].name.startswith("typescript") or in_rounds[name] is not modern[name]
        found = checks(name, report, modern=in_rounds[name], certain_logs=certain_logs, may_miss=may_miss)
        count += len(found)
        wrong += [f"{name}, {what}: {report}" for what, is_right in found.items() if not is_right]
    assert count == sum(MODERN_CHECKS if in_rounds[name] else LEGACY_CHECKS for name in users)
    return wrong
