"""What commands print, which requests they send, and with what they exit: compared with files in golden/.

Here are the answers of the daemon, by the name of the file, which has the command lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import (
    ENTRY,
    NOW,
    Caller,
    FakeDaemon,
    Fault,
    Raw,
    Silence,
    detail,
    failure,
    server,
    status,
)
from tests.ctl.golden import GOLDEN, check

Answers = Mapping[str, object]
LATER = "2026-11-21T06:40:00.000Z"
ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eevil\x9b2J"
UNKNOWN = Fault("there is no server named gitub", code="unknown_server", exit=5, server="gitub")


def each_server(*states: dict[str, Any], **more: object) -> object:
    """Answer a request for one server; one that is not among `states` is unknown."""
    known = {each["name"]: each for each in states}

    def answer(_: Caller, params: dict[str, Any]) -> object:
        name = params["server"]
        if name not in known:
            return Fault(f"there is no server named {name}", code="unknown_server", exit=5, server=name)
        return detail(known[name]) if not more else {"server": known[name], **more}

    return answer


def changed(*states: dict[str, Any], **more: object) -> object:
    """Answer a request that changes one server."""
    return each_server(*states, warnings=[], **more)


def events(*items: dict[str, Any], silent: bool = False) -> object:
    """Answer with events. Then the connection ends, unless `silent`."""

    def answer(caller: Caller, _: dict[str, Any]) -> object:
        for item in items:
            event = {"at": NOW, "message": "", **item}
            caller.notify("mcpd/event", {"request": caller.request, "event": event})
        if not silent:
            caller.hang_up()
        return Silence() if silent else {}

    return answer


def to(*states: dict[str, Any]) -> object:
    return events(
        *({"kind": "status", "server": each["name"], "status": each} for each in states), silent=True
    )


# ── states of servers ───────────────────────────────────────────────────────────────────────────

LOST = failure("exited with status 1", summary="exited (1): MY_API_KEY is required")
LOGIN = failure("HTTP 401: rejected", kind="auth", exit_code=None, http_status=401)
TIME = server("time", restarts=3, last_ok=NOW, in_flight=1)
GIT = server("git", "failed", last_error=LOST, attempts=4, retry_at=LATER, reason="retrying")
HUB = server("hub", "needs-auth", last_error=LOGIN, transport="http")
SLOW = server("slow", "pending", reason="npx is installing it", last_error=failure("no disk; see above"))
OFF = server(
    "off", "disabled", reason="switched off until 2026-11-21 06:40:00 UTC", off_until=LATER, last_error=LOST
)
FLAPPING = server("flapping", degraded="it restarted 6 times in the last minute", last_error=failure())
BLOCKED = server(
    "blocked",
    questions=[
        {
            "client": "cursor (pid 7)",
            "call": "tool 'deploy'",
            "method": "elicitation/create",
            "text": "Really?",
            "since": NOW,
            "client_is_connected": False,
        }
    ],
    waiting=[{"client": "zed (pid 8)", "call": "tool 'build'", "since": NOW}],
    waiting_calls=3,
)
ALL = (TIME, GIT, HUB, SLOW, OFF, FLAPPING, BLOCKED, server("late", "idle"))
CONFIG_PROBLEM = {"path": "$.mcpServers.git.comand", "message": "unknown field", "fix": "remove it"}
OF_SERVER = failure("unknown field @ $.mcpServers.git.comand (remove it)", kind="config", exit_code=None)
CRASH = {**ENTRY, "state": "failed", "kind": "exited", "exit_code": 3, "times": 8, "by": ""}
APPLIED = {
    "added": ["git"],
    "removed": ["old"],
    "changed": [],
    "unchanged": ["time"],
    "generation": 4,
    "errors": [],
    "dry_run": False,
    "saved": None,
}


def with_daemon(answer: dict[str, Any], **daemon: object) -> dict[str, Any]:
    return {**answer, "daemon": {**answer["daemon"], **daemon}}


EXPLAINED: dict[str, Answers] = {
    "status": {
        "mcpd/status": with_daemon(
            status(*ALL, warnings=["$.profiles: not used here", "another"]),
            approvals=2,
            warnings=["cannot write state.json: full; free space"],
            http={"url": "http://127.0.0.1:8931", "token_file": "/run/token"},
        )
    },
    "status_with_config_errors": {
        "mcpd/status": status(
            TIME, server("git", "failed", last_error=OF_SERVER), problems=[CONFIG_PROBLEM], rejected=False
        )
    },
    "status_of_one": {"mcpd/server": each_server(*ALL)},
    "status_of_an_unknown_server": {"mcpd/server": UNKNOWN, "mcpd/status": status(server("github"), TIME)},
    "status_without_a_daemon": {},
    "status_of_two_eras": {
        "mcpd/server": detail(
            server(
                "time",
                transport="http",
                session=True,
                connections=[
                    {"revision": "2026-07-28", "status": "connected", "pid": None},
                    {"revision": "2025-11-25", "status": "failed", "pid": 7, "last_error": LOST},
                ],
            ),
            url="https://time.test/mcp",
            command=[],
        )
    },
    "escapes_of_servers": {
        "mcpd/status": status(bad := server("time", "failed", last_error=failure(ESCAPES, stderr=[ESCAPES]))),
        "mcpd/server": detail({**bad, "warnings": [ESCAPES]}, log=[ESCAPES]),
    },
    "why": {"mcpd/server": each_server(*ALL)},
    "why_json": {"mcpd/server": each_server(*ALL)},
    "why_its_output_is_no_mcp": {
        "mcpd/server": detail(
            server(
                "time",
                "failed",
                last_error=failure(
                    noise="3 lines on its stdout were not JSON-RPC; the first: Usage: it [OPTIONS]",
                    stderr=["no database", "", "giving up"],
                ),
            ),
            concurrency="serial",
            share="client",
        )
    },
    "debug": {"mcpd/server": detail(TIME, junk_lines=3, junk_sample="Starting", history=[ENTRY])},
    "history": {"mcpd/history": {"entries": [ENTRY, CRASH], "dropped": 4}},
}

# ── changes of servers ──────────────────────────────────────────────────────────────────────────

CHANGES: dict[str, Answers] = {
    "connect": {"mcpd/connect": changed(TIME)},
    "enable": {
        "mcpd/enable": changed(GIT, TIME),
        "mcpd/server": detail(GIT),
        "mcpd/status": status(GIT, TIME),
    },
    "disable": {"mcpd/disable": {"server": OFF, "warnings": ["disk full; free space"]}},
    "reconnect": {
        "mcpd/status": status(GIT, HUB, TIME, OFF),
        "mcpd/reconnect": changed(GIT, HUB, TIME),
        "mcpd/server": detail(GIT),
    },
    "wait": {
        "mcpd/server": each_server(SLOW, server("time", "pending")),
        "mcpd/events": to(server("slow", "failed", retry_at=NOW, last_error=LOST), TIME, server("slow")),
    },
    "wait_for_a_person": {"mcpd/server": each_server(HUB, {**GIT, "retry_at": None}, OFF, TIME)},
    "wait_too_long": {
        "mcpd/status": status(SLOW, HUB, TIME, OFF),
        "mcpd/events": Silence(),
        "mcpd/server": detail(SLOW),
    },
    "add": {
        "mcpd/add": {**APPLIED, "saved": "/c.json"},
        "mcpd/connect": {"server": server("git")},
        "mcpd/auth/status": {"logins": [{"servers": ["docs", "hub"], "issuer": "https://as.example"}]},
        "mcpd/config": {"servers": {"git": {"command": "x", "env": {"A": "b"}, "includeTools": ["a"]}}},
    },
    "add_invalid": dict.fromkeys(
        ("mcpd/add", "mcpd/reload"),
        Fault(
            "/c.json: not valid JSON @ /c.json:3:1 (fix it); /c.json is read-only @ $",
            code="bad_spec",
            exit=2,
            problems=[
                {"path": "/c.json:3:1", "message": "not valid JSON", "fix": "fix it"},
                {"path": "$", "message": "/c.json is read-only", "fix": ""},
            ],
        ),
    ),
    "add_where_nothing_can_be_written": {
        **dict.fromkeys(
            ("mcpd/add", "mcpd/remove"),
            Fault("cannot write /c.json: full (free space)", code="cannot_write", exit=1, fix="free space"),
        ),
        "mcpd/config": {"servers": {}},
    },
    "remove": {"mcpd/remove": changed(server("old"), **APPLIED), "mcpd/status": status(server("old"))},
    "apply": {"mcpd/servers/set": APPLIED, "mcpd/status": status(TIME)},
    "apply_invalid": {"mcpd/servers/set": {**APPLIED, "errors": [CONFIG_PROBLEM]}},
    "reload": {
        "mcpd/reload": {**APPLIED, "settings_changed": ["http"], "restart_needed": ["http"]},
        "mcpd/status": status(TIME),
    },
}

# ── tools and calls ─────────────────────────────────────────────────────────────────────────────

SUM = {
    "server": "math",
    "name": "sum",
    "qualified_name": "sum@math",
    "description": "Adds\nnumbers.\x1b[2J",
    "tags": ["safe"],
    "inputSchema": {
        "type": "object",
        "properties": {"note": {"type": "string"}, "a": {"type": "number"}, "mode": {"enum": ["x", "y"]}},
        "required": ["a"],
    },
    "annotations": {"readOnlyHint": True, "title": "Sum"},
}
WIPE = {
    "server": "disk",
    "name": "wipe",
    "annotations": {"destructiveHint": True},
    "description": "Wipes it.",
}
NOTE = {"server": "disk", "name": "note", "annotations": {"readOnlyHint": False}}
ANY = {"server": "math", "name": "any", "title": "Anything"}
TOOLS = {"tools": [SUM, WIPE, NOTE, ANY], "dropped": 1}
MISSING = [
    {"server": "git", "state": "failed", "reason": "git has failed: exited (1): no token"},
    {"server": "late", "state": "idle", "reason": "late is idle: starts on first use"},
]


def result(output: str = "", **more: object) -> dict[str, object]:
    return {"success": True, "output": output, "data": None, "error": None, "warnings": [], **more}


def refused(code: str, message: str = "time: no", **more: Any) -> dict[str, object]:
    return {"mcpd/call": Fault(message, code=code, exit=7, server="time", **more)}


CALLS: dict[str, Answers] = {
    "list_tools": {"mcpd/tools": TOOLS},
    "lists_of_servers_that_are_down": {
        "mcpd/tools": {"tools": [], "dropped": 0, "missing": [*MISSING, *[MISSING[0]] * 10]},
        "mcpd/resources": {"resources": [], "resource_templates": [], "missing": MISSING},
        "mcpd/prompts": {"prompts": [], "missing": MISSING},
    },
    "resources_and_prompts": {
        "mcpd/resources": {
            "resources": [{"uri": "a://1", "name": "one", "server": "s"}],
            "resource_templates": [
                {"uriTemplate": "a://{x}", "name": "any", "mimeType": "text/plain", "server": "s"}
            ],
        },
        "mcpd/prompts": {
            "prompts": [
                {
                    "name": "hi",
                    "server": "s",
                    "arguments": [{"name": "tone"}, {"name": "city", "required": True}],
                }
            ]
        },
        "mcpd/read": {"contents": [{"uri": "a://1", "text": "text"}, {"uri": "a://1", "blob": "YmxvYgo="}]},
        "mcpd/prompt": {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}]},
    },
    "call": {
        "mcpd/tools": TOOLS,
        "mcpd/call": result("3\x1b[1m", warnings=["does not fit its outputSchema"]),
    },
    "call_structured": {"mcpd/call": result(data={"sum": 3})},
    "call_failing_tool": {"mcpd/call": result("no", success=False, error="no such zone")},
    "call_raw": {"mcpd/call": Raw('{"content":[],"isError":true,"n":1e5,"n":1.0}')},
    "call_not_understood": {"mcpd/tools": TOOLS},
    "call_not_ready": {
        **refused("not_ready", "git has failed", state="failed", may_have_run=False),
        "mcpd/server": detail(
            server("time", "failed", last_error=failure(stderr=["MY_API_KEY is required"]))
        ),
    },
    "call_too_slow": refused("timeout", after=0.3, may_have_run=True),
    "call_with_wrong_types": refused(
        "invalid_arguments",
        'bad arguments: "1" is not of type "number" @ $.a',
        problems=[{"path": "$.a", "message": '"1" is not of type "number"', "fix": ""}],
    ),
    "call_unknown": {
        "mcpd/tools": TOOLS,
        "mcpd/status": status(TIME),
        "mcpd/call": Fault("no such tool", code="unknown_tool", exit=5, server="math"),
    },
    "try": {
        "mcpd/add": {},
        "mcpd/connect": {"server": server("s")},
        "mcpd/tools": {"tools": [SUM], "dropped": 0},
        "mcpd/remove": {},
        "mcpd/call": result("3"),
    },
    "try_too_short": {"mcpd/add": {}, "mcpd/connect": {"server": SLOW}, "mcpd/remove": {}},
    "calls": {
        "mcpd/calls": {
            "calls": [
                record := {
                    "at": NOW,
                    "outcome": "ok",
                    "client": "zed",
                    "pid": 7,
                    "via": "bridge",
                    "server": "time",
                    "method": "tools/call",
                    "name": "now",
                    "duration_ms": 12.4,
                    "response_bytes": 222,
                },
                {**record, "outcome": "failed", "message": "time: no response", "client": "", "pid": None},
                {**record, "method": "resources/read", "name": "file:///x", "cached": True},
                {"at": NOW, "outcome": "omitted", "count": 31},
            ],
            "dropped": 1,
        }
    },
    "calls_of_nothing": {"mcpd/calls": {"calls": [], "dropped": 0}},
}

# ── the rest ────────────────────────────────────────────────────────────────────────────────────

COUNTS = {"calls": 12, "errors": 2, "lost": 1, "cancelled": 0, "p50_ms": 2.6, "p95_ms": 87.0, "p99_ms": None}


def stats(at: str = NOW, cpu: float = 1.0, calls: int = 12) -> dict[str, object]:
    cost = {"processes": 3, "memory": 151_000_000, "cpu_seconds": cpu}
    one = {
        "server": "time",
        "status": "connected",
        "counts": {**COUNTS, "calls": calls},
        "in_flight": 1,
        "tools": [{"tool": "convert", "tags": ["safe"], "counts": COUNTS}],
        "clients": ["zed", "zed"],
        "cache_hits": 1,
        "cache_misses": 2,
        "cost": cost,
    }
    return {"since": NOW, "at": at, "servers": [one], "clients": 1, "daemon": {**cost, "processes": 1}}


def two_samples() -> object:
    answers = [stats(), stats(at="2026-11-21T06:30:02.000Z", cpu=1.5, calls=22)]
    return lambda *_: answers.pop(0)


def frame(caller: Caller, _: object) -> object:
    shown = {
        "at": NOW,
        "server": "time",
        "direction": "from-server",
        "method": "tools/call",
        "id": "3",
        "bytes": 20,
        "message": {"id": 3, "result": {}},
        "text": "",
        "cut": False,
        "dropped": 5,
    }
    caller.notify("mcpd/frame", {"request": caller.request, "frame": shown})
    caller.hang_up()
    return {}


WAITING = {
    "id": "3",
    "client": "zed (pid 7)",
    "server": "git",
    "kind": "tool",
    "name": "push",
    "arguments": '{"force":true}',
    "rule": "$.settings.policies[0]",
    "reason": "",
    "since": NOW,
    "expires_at": LATER,
}
DECISION = {
    "decision": "deny",
    "rule": "$.settings.policies[1]",
    "reason": "never",
    "source": "/c.json",
    "client": {
        "names": ["zed", "zed-editor"],
        "executable": "/usr/bin/zed",
        "transport": "bridge",
        "profile": "review",
        "directory": "/src",
        "connected": True,
    },
    "annotations": {"readOnlyHint": False, "destructiveHint": True},
    "limits": [{"rate": "3/minute", "concurrent": 2, "rule": "$.settings.limits[0]"}],
    "steps": [
        {
            "rule": "$.settings.policies[0]",
            "decision": "allow",
            "matches": False,
            "mismatch": "the tool is x",
        },
        {"rule": "$.settings.policies[1]", "decision": "deny", "matches": True, "mismatch": ""},
    ],
}
NO_RULE = {**DECISION, "decision": "allow", "rule": None, "reason": "", "steps": [], "annotations": None}

OTHERS: dict[str, Answers] = {
    "stats": {"mcpd/stats": stats()},
    "top": {"mcpd/stats": two_samples()},
    "tap": {"mcpd/tap": frame},
    "events": {
        "mcpd/events": events(
            {"kind": "snapshot", "server": "git", "status": GIT},
            {"kind": "removed", "server": "git"},
            {"kind": "config", "message": "reloaded"},
        ),
        "mcpd/status": status(GIT, server("a-name-of-17-chars")),
    },
    "search_and_cost": {
        "mcpd/find_tools": {
            "fits": False,
            "tools": [
                {
                    "server": "git",
                    "qualified_name": "log@git",
                    "name": "log",
                    "description": "Shows commits",
                    "inputSchema": {"properties": {"path": {"type": "string"}}, "required": ["path"]},
                }
            ],
        },
        "mcpd/tool_costs": {
            "tools": [
                {"server": "git", "name": "log", "tokens": 40},
                {"server": "time", "name": "now", "tokens": 90},
                {"server": "git", "name": "status", "tokens": 60},
            ],
            "surfaces": [
                {"surface": "full", "tools": 3, "tokens": 190},
                {"surface": "search", "tools": 4, "tokens": 503},
            ],
        },
    },
    "clients": {
        "mcpd/clients": {
            "clients": [
                {
                    "pid": 7,
                    "name": "zed",
                    "since": NOW,
                    "calls": 3,
                    "via": "bridge",
                    "sees": "*",
                    "protocol_version": "2025-06-18",
                    "listed": {"surface": "search", "tools": 4, "tokens": 503},
                    "servers": {
                        "git": {"calls": 12},
                        "time": {"calls": 3, "revisions": "2025-06-18 → 2026-07-28"},
                    },
                },
                {"pid": os.getpid(), "name": "mcpctl", "since": NOW, "via": "socket"},
            ]
        }
    },
    "approvals": {
        "mcpd/approvals": {"approvals": [WAITING, {**WAITING, "id": "4", "arguments": ""}]},
        "mcpd/approve": {},
    },
    "approvals_of_nothing": {
        "mcpd/approvals": {"approvals": []},
        "mcpd/approve": Fault(
            "no call '99' waits for approval (see: mcpctl approvals)",
            code="invalid_arguments",
            exit=2,
            problems=[
                {"path": "$.id", "message": "no call '99' waits for approval", "fix": "mcpctl approvals"}
            ],
        ),
    },
    "policy": {"mcpd/policy": DECISION},
    "policy_without_a_rule": {"mcpd/policy": NO_RULE},
    "policy_of_an_unknown_tool": {"mcpd/policy": {**NO_RULE, "known": False, "selected": False}},
    "small_commands": {
        "mcpd/cache/clear": {"results": 12},
        "mcpd/metrics": {"content_type": "text/plain", "text": "a 1\nb 2\n"},
        "mcpd/page": {"url": "http://127.0.0.1:8931/#code", "seconds": 60.0},
        "mcpd/logs": {"lines": []},
        "mcpd/version": {
            "version": "0.0.1",
            "pid": 7,
            "api": 1,
            "python": "3.11",
            "protocol_versions": ["2025-11-25", "2026-07-28"],
        },
        "mcpd/shutdown": {},
    },
    "config": {
        "mcpd/config": {
            "source": "f",
            "path": "f",
            "generation": 1,
            "servers": {
                "a": {"cmd": "program", "args": ["x y"]},
                "b": {"command": ["program", "first"], "args": ["second"], "isActive": False},
                "c": {"httpUrl": "http://c/mcp"},
            },
        }
    },
    "commands_that_do_not_exist": {},
}


FILES = {
    "add": {"server.py": ""},
    "apply": {
        "a.json": '{"mcpServers": {"git": {"command": "g", "cwd": "sub"}}} // a remark',
        "c.yaml": "mcpServers:\n  git:\n    command: g\n    cwd: sub\n",
        "d.toml": '[mcpServers.git]\ncommand = "g"\ncwd = "sub"\n',
    },
    "apply_invalid": {"a.json": '{"mcpServers": {"git": {}}}'},
    "config": {"good.json": '{"mcpServers": {"git": {"command": "g"}}}'},
}
"""Files in the current directory, by case."""

CASES = EXPLAINED | CHANGES | CALLS | OTHERS


@pytest.mark.parametrize("name", CASES)
def test_output(
    name: str,
    daemon: FakeDaemon,
    mcpctl: Mcpctl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    place = tmp_path / "here"
    place.mkdir()
    daemon.answers |= CASES[name]
    for file, text in FILES.get(name, {}).items():
        (place / file).write_text(text)
    check(name, daemon, mcpctl, place, monkeypatch, update=bool(request.config.getoption("--update")))


def test_every_golden_file_has_a_case() -> None:
    assert {file.stem for file in GOLDEN.glob("*.txt")} == CASES.keys()


def test_json_of_the_daemon_is_passed_on_byte_for_byte(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Numbers, key order and duplicate keys do not change."""
    text = '{"servers": [],"x":1.10,"big":123456789012345678901234567890,"x":"\\u00e9é"}'
    daemon.answers["mcpd/status"] = Raw(text)
    assert mcpctl("status", "--json").out == text[:-1] + ', "next": null}\n'
    text = json.dumps(detail(server("time"), next="mcpctl list-tools time")).replace(": 0", ": 0.0")
    daemon.answers["mcpd/server"] = Raw(text)
    assert mcpctl("status", "time", "--json").out == text + "\n"
