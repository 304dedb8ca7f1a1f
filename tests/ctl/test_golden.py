"""What commands print, which requests they send, and with what they exit: compared with files in golden/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import (
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
from tests.ctl.golden import GOLDEN, Case, check

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
GONE = failure("command not found: nonesuch; looked in PATH=/usr/bin", kind="spawn", exit_code=None)
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
ENTRY = {
    "at": NOW,
    "what": "state",
    "server": "time",
    "state": "disabled",
    "message": "it was switched off",
    "by": "zed (pid 7)",
    "kind": None,
    "exit_code": None,
    "signal": None,
    "times": 1,
}
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


EXPLAINED = [
    Case(
        "status",
        ["status", "status --utc", "status -o json", "ls"],
        {
            "mcpd/status": with_daemon(
                status(*ALL, warnings=["$.profiles: not used here", "another"]),
                approvals=2,
                warnings=["cannot write state.json: full; free space"],
                http={"url": "http://127.0.0.1:8931", "token_file": "/run/token"},
            )
        },
    ),
    Case("status_of_nothing", ["status"], {"mcpd/status": status(source="none", warnings=["/c is gone"])}),
    Case(
        "status_with_config_errors",
        ["status", "status --json"],
        {
            "mcpd/status": status(
                TIME, server("git", "failed", last_error=OF_SERVER), problems=[CONFIG_PROBLEM], rejected=False
            )
        },
    ),
    Case(
        "status_with_rejected_config",
        ["status"],
        {"mcpd/status": status(TIME, problems=[{**CONFIG_PROBLEM, "path": "$.settings.htpp"}])},
    ),
    Case(
        "status_with_bad_rules",
        ["status"],
        {
            "mcpd/status": status(
                TIME, problems=[{**CONFIG_PROBLEM, "path": "$.settings.policies[0].decision"}], rejected=False
            )
        },
    ),
    Case("status_of_a_set", ["status"], {"mcpd/status": status(TIME, source="api")}),
    Case(
        "status_of_another_version", ["status"], {"mcpd/status": with_daemon(status(TIME), version="0.0.1")}
    ),
    Case(
        "status_of_one",
        ["status time", "status time --utc", "status git", "status time hub", "status time hub --json"],
        {"mcpd/server": each_server(*ALL)},
    ),
    Case(
        "status_of_an_unknown_server",
        ["status gitub", "status gitub --json"],
        {"mcpd/server": UNKNOWN, "mcpd/status": status(server("github"), TIME)},
    ),
    Case("status_without_a_daemon", ["--socket /nowhere/s status", "--socket /nowhere/s --json status"]),
    Case(
        "status_of_two_eras",
        ["status time", "why time --no-shell"],
        {
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
    ),
    Case(
        "escapes_of_servers",
        ["status", "status time", "why time --no-shell", "debug time"],
        {
            "mcpd/status": status(
                bad := server("time", "failed", last_error=failure(ESCAPES, stderr=[ESCAPES]))
            ),
            "mcpd/server": detail({**bad, "warnings": [ESCAPES]}, log=[ESCAPES]),
        },
    ),
    Case("why", [f"why {each['name']} --no-shell" for each in ALL], {"mcpd/server": each_server(*ALL)}),
    Case("why_json", ["why git --no-shell --json"], {"mcpd/server": each_server(*ALL)}),
    Case(
        "why_it_was_disabled",
        ["why time"],
        {"mcpd/server": detail(server(status="disabled", reason="switched off"), history=[ENTRY])},
    ),
    Case(
        "why_it_was_killed",
        ["why time --no-shell"],
        {
            "mcpd/server": detail(
                server(
                    "time",
                    "failed",
                    last_error=failure(
                        "was killed by SIGKILL", kind="killed", exit_code=None, signal="SIGKILL"
                    ),
                )
            )
        },
    ),
    Case(
        "why_its_output_is_no_mcp",
        ["why time --no-shell"],
        {
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
    ),
    Case(
        "why_there_is_no_program",
        ["why time --no-shell"],
        {
            "mcpd/server": detail(
                server("time", "failed", last_error=GONE), command=["/opt/it"], executable=None
            )
        },
    ),
    Case(
        "why_the_definition_is_invalid",
        ["why git --no-shell"],
        {
            "mcpd/server": detail(
                server("git", "failed", last_error=OF_SERVER), executable="", definition={"comand": "x"}
            )
        },
    ),
    Case(
        "why_it_is_down_since_long",
        ["why time --no-shell --utc"],
        {
            "mcpd/server": detail(server(status="failed", last_error=failure())),
            "mcpd/history": {
                "entries": [
                    {**ENTRY, "at": f"2026-11-21T0{hour}:00:00.000Z", "state": state, "by": ""}
                    for hour, state in (
                        (1, "failed"),
                        (2, "connected"),
                        (3, "pending"),
                        (4, None),
                        (5, "failed"),
                    )
                ],
                "dropped": 0,
            },
        },
    ),
    Case(
        "why_calls_overlap",
        ["why time --no-shell"],
        {"mcpd/server": detail(server(), concurrency="auto", share="declared-root")},
    ),
    Case(
        "debug",
        ["debug time"],
        {"mcpd/server": detail(TIME, junk_lines=3, junk_sample="Starting", history=[ENTRY])},
    ),
    Case(
        "history",
        ["history -n 2", "history time --utc"],
        {"mcpd/history": {"entries": [ENTRY, CRASH], "dropped": 4}},
    ),
    Case("history_of_nothing", ["history"], {"mcpd/history": {"entries": [], "dropped": 0}}),
]

# ── changes of servers ──────────────────────────────────────────────────────────────────────────

CHANGES = [
    Case(
        "connect",
        ["connect time nope time --wait 2", "connect time nope --json"],
        {"mcpd/connect": changed(TIME)},
    ),
    Case(
        "enable",
        [
            "enable git",
            "enable git --wait 0",
            "enable git --json",
            "enable --all",
            "enable",
            "enable x --all",
        ],
        {"mcpd/enable": changed(GIT, TIME), "mcpd/server": detail(GIT), "mcpd/status": status(GIT, TIME)},
    ),
    Case(
        "disable",
        ["disable off", "disable off --until 2126-11-22T18:00Z"],
        {"mcpd/disable": {"server": OFF, "warnings": ["disk full; free space"]}},
    ),
    Case(
        "disable_at_no_time",
        [
            "disable git --for 2",
            "disable git --until six",
            "disable git --until 2001-01-01T12:00",
            "disable git --for 2h --until 2126-11-22",
        ],
    ),
    Case(
        "reconnect",
        ["reconnect --failed", "reconnect --all", "reconnect", "reconnect git --all", "restart time"],
        {
            "mcpd/status": status(GIT, HUB, TIME, OFF),
            "mcpd/reconnect": changed(GIT, HUB, TIME),
            "mcpd/server": detail(GIT),
        },
    ),
    Case("reconnect_nothing", ["reconnect --failed"], {"mcpd/status": status(TIME)}),
    Case(
        "wait",
        ["wait slow time"],
        {
            "mcpd/server": each_server(SLOW, server("time", "pending")),
            "mcpd/events": to(server("slow", "failed", retry_at=NOW, last_error=LOST), TIME, server("slow")),
        },
    ),
    Case(
        "wait_for_a_person",
        ["wait hub", "wait hub --for settled", "wait hub git off --json", "wait hub time"],
        {"mcpd/server": each_server(HUB, {**GIT, "retry_at": None}, OFF, TIME)},
    ),
    Case(
        "wait_for_a_variable",
        ["wait git"],
        {
            "mcpd/server": detail(
                server("git", "failed", retry_at=NOW, last_error=failure(stderr=["API_KEY is required"]))
            )
        },
    ),
    Case(
        "wait_too_long",
        ["wait --timeout 0.05"],
        {"mcpd/status": status(SLOW, HUB, TIME, OFF), "mcpd/events": Silence(), "mcpd/server": detail(SLOW)},
    ),
    Case("wait_for_a_flapping_server", ["wait flapping"], {"mcpd/server": detail(FLAPPING)}),
    Case(
        "add",
        [
            "add git --env A=b=c -- uvx mcp-git --json -v",
            "add git --json -- uvx mcp-git",
            "add docs https://x/mcp --wait 0 -H A=b",
            "add docs --lazy -- x",
            "add mine --wait 0 -- python server.py",
        ],
        {"mcpd/add": {**APPLIED, "saved": "/c.json"}, "mcpd/connect": {"server": server("git")}},
        {"server.py": ""},
    ),
    Case(
        "add_what_does_not_connect",
        ["add git -- uvx mcp-git", "add git --json -- uvx mcp-git", "add git --no-save -- uvx mcp-git"],
        {"mcpd/add": APPLIED, "mcpd/connect": {"server": HUB}, "mcpd/server": detail(HUB)},
    ),
    Case(
        "add_nothing",
        [
            "add git",
            "add git --url http://x -- x",
            "add git --env A -- x",
            "add bad name -- x",
            "add files npx -y x",
            "add -- x",
        ],
    ),
    Case(
        "add_invalid",
        ["add it -- x", "reload"],
        dict.fromkeys(
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
    ),
    Case(
        "add_where_nothing_can_be_written",
        ["add it -- true", "add it --replace -- true", "remove it --yes", "remove it --yes --json"],
        dict.fromkeys(
            ("mcpd/add", "mcpd/remove"),
            Fault("cannot write /c.json: full (free space)", code="cannot_write", exit=1, fix="free space"),
        ),
    ),
    Case(
        "remove",
        [
            "remove old",
            "remove old --yes",
            "remove old nope --yes",
            "remove old nope --yes --json",
            "remove --all --yes --json",
            "remove git --all --yes",
        ],
        {"mcpd/remove": changed(server("old"), **APPLIED), "mcpd/status": status(server("old"))},
    ),
    Case(
        "apply",
        [
            "apply a.json --plan --if-generation 3",
            "apply c.yaml --plan",
            "apply d.toml --wait 0",
            "apply bad.json",
            "apply none.json",
        ],
        {"mcpd/servers/set": APPLIED, "mcpd/status": status(TIME)},
        {
            "a.json": '{"mcpServers": {"git": {"command": "g", "cwd": "sub"}}} // a remark',
            "c.yaml": "mcpServers:\n  git:\n    command: g\n    cwd: sub\n",
            "d.toml": '[mcpServers.git]\ncommand = "g"\ncwd = "sub"\n',
            "bad.json": '{"mcpServers": [',
        },
    ),
    Case(
        "apply_and_wait",
        ["apply a.json", "apply a.json --json"],
        {
            "mcpd/servers/set": {**APPLIED, "added": ["git", "time"], "saved": "/c.json"},
            "mcpd/status": status({**GIT, "retry_at": None}, TIME),
            "mcpd/server": detail(GIT),
        },
        {"a.json": '{"mcpServers": {}}'},
    ),
    Case(
        "apply_invalid",
        ["apply a.json"],
        {"mcpd/servers/set": {**APPLIED, "errors": [CONFIG_PROBLEM]}},
        {"a.json": '{"mcpServers": {"git": {}}}'},
    ),
    Case(
        "reload",
        ["reload", "reload --json"],
        {
            "mcpd/reload": {**APPLIED, "settings_changed": ["http"], "restart_needed": ["http"]},
            "mcpd/status": status(TIME),
        },
    ),
    Case(
        "reload_of_nothing_new",
        ["reload"],
        {"mcpd/reload": {**APPLIED, "added": [], "removed": []}, "mcpd/status": status(TIME)},
    ),
]

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


CALLS = [
    Case(
        "list_tools",
        [
            "list-tools",
            "list-tools --schema",
            "list-tools math --group-by effect",
            "list-tools --group-by server",
            "list-tools -g WIPES -g disk",
            "search nothing",
            "list-tools --tag safe --json",
            "list-tools --tag unused",
            "list-tools --group-by effect --schema",
        ],
        {"mcpd/tools": TOOLS},
    ),
    Case(
        "lists_of_servers_that_are_down",
        ["tools", "resources", "prompts"],
        {
            "mcpd/tools": {"tools": [], "dropped": 0, "missing": [*MISSING, *[MISSING[0]] * 10]},
            "mcpd/resources": {"resources": [], "resource_templates": [], "missing": MISSING},
            "mcpd/prompts": {"prompts": [], "missing": MISSING},
        },
    ),
    Case(
        "resources_and_prompts",
        [
            "resources",
            "prompts",
            "read a://x@y@s",
            "read s a://x -o out",
            "read s",
            "prompt hi@s city=Paris",
            "prompt hi@s n:=1",
        ],
        {
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
            "mcpd/read": {
                "contents": [{"uri": "a://1", "text": "text"}, {"uri": "a://1", "blob": "YmxvYgo="}]
            },
            "mcpd/prompt": {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}]},
        },
    ),
    Case(
        "call",
        [
            "call sum@math n:=3 zone=UTC",
            "call math/sum a=1 mode=x",
            "call math.sum --a 1.5 --note=x=y",
            "call math sum '{\"a\": 1}' a=2",
            "call math__sum a=null",
            "call sum@math a=1 --json",
            "call mail@work@smtp to=a@b.c",
        ],
        {"mcpd/tools": TOOLS, "mcpd/call": result("3\x1b[1m", warnings=["does not fit its outputSchema"])},
    ),
    Case("call_structured", ["call sum@math"], {"mcpd/call": result(data={"sum": 3})}),
    Case(
        "call_failing_tool",
        ["call sum@math", "call sum@math --json"],
        {"mcpd/call": result("no", success=False, error="no such zone")},
    ),
    Case(
        "call_raw",
        ["call sum@math --raw", "call sum@math --raw --json"],
        {"mcpd/call": Raw('{"content":[],"isError":true,"n":1e5,"n":1.0}')},
    ),
    Case(
        "call_not_understood",
        [
            "call",
            "call t",
            "call @s",
            "call sum",
            "call math",
            "call t@s word",
            "call t@s a:=nope",
            "call t@s --args [1]",
            "call t@s --args {",
            "call t@s --args @none",
            "call sum@math a=NaN",
            "call sum@math '{\"b\": [-1e999]}'",
            "call sum@math --tmeout 3",
            "call sum@math --a",
            "call sum@math --timeout soon",
        ],
        {"mcpd/tools": TOOLS},
    ),
    Case(
        "call_not_ready",
        ["call now@time", "call now@time --json"],
        {
            **refused("not_ready", "git has failed", state="failed", may_have_run=False),
            "mcpd/server": detail(
                server("time", "failed", last_error=failure(stderr=["MY_API_KEY is required"]))
            ),
        },
    ),
    Case(
        "call_disabled",
        ["call now@time"],
        refused(
            "not_ready", "time is disabled: off. Nothing was sent; run `mcpctl enable time`", state="disabled"
        ),
    ),
    Case("call_too_slow", ["call now@time --timeout 0.3"], refused("timeout", after=0.3, may_have_run=True)),
    Case("call_not_approved", ["call now@time"], refused("denied", "was not approved within 300 s")),
    Case(
        "call_with_wrong_types",
        ["call now@time a=1"],
        refused(
            "invalid_arguments",
            'bad arguments: "1" is not of type "number" @ $.a',
            problems=[{"path": "$.a", "message": '"1" is not of type "number"', "fix": ""}],
        ),
    ),
    Case(
        "call_unknown",
        ["call summ@math", "call a__b ."],
        {
            "mcpd/tools": TOOLS,
            "mcpd/status": status(TIME),
            "mcpd/call": Fault("no such tool", code="unknown_tool", exit=5, server="math"),
        },
    ),
    Case(
        "try",
        ["try -- server", "try -- server -- sum a=1", "try -- server -- summ", "try", "try https://x -- sum"],
        {
            "mcpd/add": {},
            "mcpd/connect": {"server": server("s")},
            "mcpd/tools": {"tools": [SUM], "dropped": 0},
            "mcpd/remove": {},
            "mcpd/call": result("3"),
        },
    ),
    Case(
        "try_too_short",
        ["try --wait 3 -- sleep 100"],
        {"mcpd/add": {}, "mcpd/connect": {"server": SLOW}, "mcpd/remove": {}},
    ),
    Case(
        "calls",
        [
            "calls time --utc -n 9 --failed",
            "calls",
            "calls --since yesterday",
        ],
        {
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
                    {
                        **record,
                        "outcome": "failed",
                        "message": "time: no response",
                        "client": "",
                        "pid": None,
                    },
                    {**record, "method": "resources/read", "name": "file:///x", "cached": True},
                    {"at": NOW, "outcome": "omitted", "count": 31},
                ],
                "dropped": 1,
            }
        },
    ),
    Case("calls_of_nothing", ["calls", "calls time"], {"mcpd/calls": {"calls": [], "dropped": 0}}),
]

# ── the rest ────────────────────────────────────────────────────────────────────────────────────

COUNTS = {"calls": 12, "errors": 2, "lost": 1, "cancelled": 0, "p50_ms": 2.6, "p95_ms": 87.0, "p99_ms": None}
CLIENT = {"pid": 7, "name": "zed", "since": NOW, "attached": "time", "calls": 3}


def stats(at: str = NOW, cpu: float = 1.0, calls: int = 12) -> dict[str, object]:
    cost = {"processes": 3, "memory": 151_000_000, "cpu_seconds": cpu}
    one = {
        "server": "time",
        "status": "connected",
        "counts": {**COUNTS, "calls": calls},
        "in_flight": 1,
        "tools": [{"tool": "convert", "tags": ["safe"], "counts": COUNTS}],
        "clients": [CLIENT, {**CLIENT, "attached": ""}],
        "cache_hits": 1,
        "cache_misses": 2,
        "cost": cost,
    }
    return {"since": NOW, "at": at, "servers": [one], "clients": [CLIENT], "daemon": {**cost, "processes": 1}}


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

OTHERS = [
    Case(
        "stats",
        ["stats", "stats time", "stats --tag safe", "stats --tag none", "stats --tag safe --json"],
        {"mcpd/stats": stats()},
    ),
    Case("top", ["top"], {"mcpd/stats": two_samples()}),
    Case("tap", ["tap time -m tools/*", "tap time --json"], {"mcpd/tap": frame}),
    Case(
        "events",
        ["events", "events git --json", "status --watch"],
        {
            "mcpd/events": events(
                {"kind": "snapshot", "server": "git", "status": GIT},
                {"kind": "removed", "server": "git"},
                {"kind": "config", "message": "reloaded"},
            ),
            "mcpd/status": status(GIT, server("a-name-of-17-chars")),
        },
    ),
    Case(
        "clients",
        ["clients"],
        {
            "mcpd/clients": {
                "clients": [
                    {
                        **CLIENT,
                        "via": "bridge",
                        "sees": "*",
                        "protocol_version": "2025-06-18",
                        "servers": {
                            "git": {"calls": 12},
                            "time": {"calls": 3, "revisions": "2025-06-18 → 2026-07-28"},
                        },
                    }
                ]
            }
        },
    ),
    Case(
        "approvals",
        [
            "approvals",
            "approvals --json",
            "approvals allow 3",
            "approvals allow 3 --session",
            "approvals allow 3 --always",
            "approvals deny 3",
            "approvals allow 3 --session --always",
        ],
        {
            "mcpd/approvals": {"approvals": [WAITING, {**WAITING, "id": "4", "arguments": ""}]},
            "mcpd/approve": {},
        },
    ),
    Case(
        "approvals_of_nothing",
        ["approvals", "approvals allow 99", "approvals allow 99 --json"],
        {
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
    ),
    Case(
        "policy",
        [
            "policy test zed x@git --transport bridge",
            "policy test zed x@git --json",
            "policy test zed a@b x=1",
        ],
        {"mcpd/policy": DECISION},
    ),
    Case("policy_without_a_rule", ["policy test zed a@b --kind resource"], {"mcpd/policy": NO_RULE}),
    Case(
        "policy_of_an_unknown_tool",
        ["policy test zed x@git --profile review"],
        {"mcpd/policy": {**NO_RULE, "known": False, "selected": False}},
    ),
    Case(
        "small_commands",
        ["cache clear time", "metrics", "ui --print", "logs git", "version", "version --json", "shutdown"],
        {
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
    ),
    Case(
        "config",
        [
            "config show",
            "config validate good.json",
            "config validate bad.json",
            "config validate bad.json --json",
        ],
        {
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
        {
            "good.json": '{"mcpServers": {"git": {"command": "g"}}}',
            "bad.json": '{"mcpServers": {"git": {"comand": 1}}}',
        },
    ),
    Case(
        "commands_that_do_not_exist",
        [
            "recconect",
            "recconect --json",
            "start",
            "init",
            "status --wtach",
            "config vlidate",
            "help exit-codes",
        ],
    ),
]


@pytest.mark.parametrize("case", [*EXPLAINED, *CHANGES, *CALLS, *OTHERS], ids=lambda case: case.name)
def test_output(
    case: Case,
    daemon: FakeDaemon,
    mcpctl: Mcpctl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    place = tmp_path / "here"
    place.mkdir()
    update = bool(request.config.getoption("--update"))
    check(case, daemon, mcpctl, place, monkeypatch, update=update)


def test_every_golden_file_has_a_case() -> None:
    names = {case.name for case in (*EXPLAINED, *CHANGES, *CALLS, *OTHERS)}
    assert {file.stem for file in GOLDEN.glob("*.txt")} == names


def test_json_of_the_daemon_is_passed_on_byte_for_byte(daemon: FakeDaemon, mcpctl: Mcpctl) -> None:
    """Numbers, key order and duplicate keys do not change."""
    text = '{"servers": [],"x":1.10,"big":123456789012345678901234567890,"x":"\\u00e9é"}'
    daemon.answers["mcpd/status"] = Raw(text)
    assert mcpctl("status", "--json").out == text[:-1] + ', "next": null}\n'
    text = json.dumps(detail(server("time"), next="mcpctl list-tools time")).replace(": 0", ": 0.0")
    daemon.answers["mcpd/server"] = Raw(text)
    assert mcpctl("status", "time", "--json").out == text + "\n"
