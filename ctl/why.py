"""The answer to `mcpctl why`: one cause, its evidence, one thing to do.

From what the daemon knows of the server, and from what this user's shell would do differently.
"""

from __future__ import annotations

from collections.abc import Mapping

from ctl import loginshell, userunit
from ctl.client import Json
from ctl.happenings import history_table
from ctl.render import Line, paint
from ctl.text import ago, until
from ctl.views import READY, facts, mapping, next_command, objects, state, strings

Explanation = dict[str, object]


def explain(detail: Json, login: Mapping[str, str] | None) -> Explanation:
    """The `--json` form. `login` is the login shell's environment; None when it was not asked."""
    server = mapping(detail.get("server"))
    failure = mapping(server.get("last_error"))
    binary = _binary(detail, login)
    environment = _environment(detail, login)
    asked = [entry for entry in objects(detail.get("history")) if entry.get("by")]
    return {
        "server": server.get("name"),
        "status": server.get("status"),
        "since": server.get("since"),
        "retry_at": server.get("retry_at"),
        "because": _because(server, failure, asked),
        "evidence": {
            key: failure.get(key)
            for key in ("kind", "at", "exit_code", "signal", "http_status", "crash_loop", "stderr")
        }
        if failure
        else None,
        "binary": binary,
        "environment": environment,
        "asked_by": asked[-1] if asked else None,
        "history": objects(detail.get("history")),
        "warnings": strings(server.get("warnings")),
        "next": _next(server, failure, binary),
    }


def _because(server: Json, failure: Json, asked: list[Json]) -> str:
    status = server.get("status")
    if status in ("failed", "needs-auth"):
        return str(failure.get("message") or server.get("reason") or "it is not known")
    if status == "disabled":
        last = asked[-1] if asked else {}
        reason = str(server.get("reason") or "it is switched off")
        by = f", by {last['by']} {ago(last.get('at'))}" if last.get("state") == "disabled" else ""
        return reason + by
    if status == "idle":
        return "it is lazy, and nobody has used it yet"
    if status == "pending":
        reason = str(server.get("reason") or "it is being connected")
        return f"{reason}; the attempt before failed: {failure['message']}" if failure else reason
    if failure:
        return f"it is well; its last connection ended {ago(failure.get('at'))}: {failure.get('message')}"
    return "it is well"


def _binary(detail: Json, login: Mapping[str, str] | None) -> Explanation | None:
    """What is run, and what a shell would run; None for a remote server."""
    definition = mapping(detail.get("definition"))
    command = strings(detail.get("command"))[:1] or strings(definition.get("command"))[:1]
    if not command and isinstance(definition.get("command"), str):
        command = [str(definition["command"])]
    if not command:
        return None
    path = str(detail.get("path") or "")
    found = detail.get("executable") or loginshell.found_in(command[0], path)
    in_shell = None if login is None else loginshell.found_in(command[0], login.get("PATH", ""))
    return {
        "command": command[0],
        "found": found,
        "searched": path.split(":") if path else [],
        "in_login_shell": in_shell,
        "elsewhere": [] if found else [each for each in loginshell.elsewhere(command[0]) if each != in_shell],
    }


def _environment(detail: Json, login: Mapping[str, str] | None) -> Explanation | None:
    if login is None or not detail.get("path"):
        return None
    names = set(strings(detail.get("env")))
    return {
        "path_only_in_login_shell": loginshell.missing_directories(
            login.get("PATH", ""), str(detail.get("path"))
        ),
        "variables_only_in_login_shell": loginshell.only_there(login, names),
    }


def _next(server: Json, failure: Json, binary: Explanation | None) -> str:
    name = server.get("name")
    if failure.get("kind") == "spawn" and binary is not None and not binary["found"]:
        if binary["in_login_shell"]:
            takes = "mcpctl daemon install" if userunit.installed() else "mcpctl daemon restart"
            full = binary["in_login_shell"]
            return f"{takes}   (takes over this shell's PATH; or write {full} as its command)"
        if places := binary["elsewhere"]:
            assert isinstance(places, list)
            return f"write {places[0]} as its command, then: mcpctl reload"
        return f"install {binary['command']}, then: mcpctl reconnect {name}"
    return next_command(server)


def explanation(told: Explanation, fit: int | None) -> list[Line]:
    """For a person: the cause first, the thing to do last."""
    status = str(told["status"])
    because = str(told["because"]).partition("; looked in PATH=")[0]  # that has a row of its own
    lines: list[Line] = [
        [
            paint(str(told["server"]), "bold"),
            " is ",
            state(told),
            f" since {told['since']} ({ago(told['since'])})",
        ],
        ["because ", because if status in READY else paint(because, "yellow")],
    ]
    if told["retry_at"]:
        lines.append([f"and is tried again {until(told['retry_at'])}"])
    rows = [*_evidence(mapping(told["evidence"])), *_binary_rows(mapping(told["binary"]))]
    # What the shell has besides is a hint only where something is wrong.
    if status in ("failed", "pending"):
        rows += _environment_rows(mapping(told["environment"]))
    if rows:
        lines += [[], *facts(rows)]
    lines += ([paint("   warning: ", "yellow"), warning] for warning in strings(told["warnings"]))
    if entries := objects(told["history"]):
        lines += [[], *history_table(entries, servers=False, fit=fit)]
    return [*lines, [], [paint("next: ", "dim"), str(told["next"])]]


def _evidence(evidence: Json) -> list[tuple[str, str]]:
    if not evidence:
        return []
    ended = [f"exit code {evidence['exit_code']}"] if evidence.get("exit_code") is not None else []
    ended += [str(evidence["signal"])] if evidence.get("signal") else []
    ended += [f"HTTP status {evidence['http_status']}"] if evidence.get("http_status") is not None else []
    ended += ["crash loop"] if evidence.get("crash_loop") else []
    kind = f"{evidence.get('kind')} ({', '.join(ended)})" if ended else str(evidence.get("kind"))
    rows = [("evidence", f"{kind}, {ago(evidence.get('at'))}")]
    stderr = strings(evidence.get("stderr"))[-5:]
    return rows + [("it said" if line is stderr[0] else "", line) for line in stderr]


def _binary_rows(binary: Json) -> list[tuple[str, str]]:
    if not binary:
        return []
    command, found, in_shell = binary.get("command"), binary.get("found"), binary.get("in_login_shell")
    rows = [("runs", str(found) if found else f"nothing: {command} was not found")]
    if not found:
        rows.append(("searched", ":".join(strings(binary.get("searched")))))
    if in_shell and in_shell != found:
        rows.append(("your shell", f"runs {in_shell}"))
    rows += [("there is", place) for place in strings(binary.get("elsewhere"))[:3]]
    return rows


def _environment_rows(environment: Json) -> list[tuple[str, str]]:
    rows = []
    if directories := strings(environment.get("path_only_in_login_shell")):
        rows.append(("PATH lacks", ":".join(directories)))
    if names := strings(environment.get("variables_only_in_login_shell")):
        shown = " ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        rows.append(("not given", f"{shown} (your shell has them; `env` in its definition passes them on)"))
    return rows
