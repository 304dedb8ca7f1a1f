"""The answer to `mcpctl why`: one cause, its evidence, one thing to do.

From what the daemon knows of the server, and from what this user's shell would do differently.
"""

from __future__ import annotations

from collections.abc import Mapping

from ctl import definition_fields, login_shell, systemd_units
from ctl.daemon_client import Json
from ctl.history_view import history_table
from ctl.next_steps import next_command
from ctl.output import Line, paint
from ctl.status_view import (
    READY,
    exit_details,
    format_time,
    labelled_lines,
    mapping,
    objects,
    painted_state,
    short_message,
    strings,
)
from ctl.terminal_text import ago, until

Explanation = dict[str, object]

_STDERR_LINES = 10
"""Lines of stderr. What npm has to say of a package that there is not takes eight, the best of them first."""


def explain(detail: Json, past: list[Json], login: Mapping[str, str] | None) -> Explanation:
    """The `--json` form. `past` is its whole history, `login` the login shell's environment, or None when it
    was not asked.
    """
    server = mapping(detail.get("server"))
    failure = mapping(server.get("last_error"))
    binary = _binary(detail, login)
    environment = _environment(detail, login)
    asked = [entry for entry in objects(detail.get("history")) if entry.get("by")]
    return {
        "server": server.get("name"),
        "status": server.get("status"),
        "since": server.get("since"),
        "down_since": _down_since(server, past),
        "retry_at": server.get("retry_at"),
        "because": _cause(server, failure, asked),
        "evidence": {
            key: failure.get(key)
            for key in ("kind", "at", "exit_code", "signal", "http_status", "crash_loop", "stderr", "noise")
        }
        if failure
        else None,
        "url": detail.get("url") or None,
        "binary": binary,
        "environment": environment,
        "asked_by": asked[-1] if asked else None,
        "history": objects(detail.get("history")),
        "warnings": strings(server.get("warnings")),
        "next": _next(detail, failure, binary),
    }


def _cause(server: Json, failure: Json, asked: list[Json]) -> str:
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


def _down_since(server: Json, history: list[Json]) -> str | None:
    """When it was last connected, or first failed, as far as the history goes; None while it is well or off.

    `since` is that of the state, which begins anew with each attempt.
    """
    if server.get("status") not in ("failed", "pending", "needs-auth"):
        return None
    down: str | None = None
    for entry in reversed(history):
        if entry.get("state") in (*READY, "disabled"):
            break
        if entry.get("state"):
            down = str(entry.get("at"))
    return down


def _binary(detail: Json, login: Mapping[str, str] | None) -> Explanation | None:
    """What is run, and what a shell would run; None for a remote server."""
    command = strings(detail.get("command")) or definition_fields.command(mapping(detail.get("definition")))
    if not command:
        return None
    path = str(detail.get("path") or "")
    found = detail.get("executable") or login_shell.find_program(command[0], path)
    in_shell = None if login is None else login_shell.find_program(command[0], login.get("PATH", ""))
    return {
        "command": command[0],
        "found": found,
        "searched": path.split(":") if path else [],
        "in_login_shell": in_shell,
        "elsewhere": []
        if found
        else [each for each in login_shell.find_elsewhere(command[0]) if each != in_shell],
    }


def _environment(detail: Json, login: Mapping[str, str] | None) -> Explanation | None:
    if login is None or not detail.get("path"):
        return None
    names = set(strings(detail.get("env")))
    return {
        "path_only_in_login_shell": login_shell.missing_directories(
            login.get("PATH", ""), str(detail.get("path"))
        ),
        "variables_only_in_login_shell": login_shell.extra_variables(login, names),
    }


def _next(detail: Json, failure: Json, binary: Explanation | None) -> str:
    server = mapping(detail.get("server"))
    name = server.get("name")
    if failure.get("kind") == "spawn" and binary is not None and not binary["found"] and _uses_path(binary):
        if full := binary["in_login_shell"]:
            if "PATH" in definition_fields.environment(
                mapping(detail.get("definition"))
            ):  # which no PATH of ours changes
                return f"mcpctl edit   (write {full} as its command, or correct the PATH in its `env`)"
            takes = "mcpctl daemon install" if systemd_units.is_installed() else "mcpctl daemon restart"
            return f"{takes}   (takes over this shell's PATH; or write {full} as its command)"
        if places := strings(binary["elsewhere"]):
            return f"mcpctl edit   (write {places[0]} as its command)"
        return f"install {binary['command']}, then: mcpctl reconnect {name}"
    return next_command(server)


def _uses_path(binary: Mapping[str, object]) -> bool:
    return "/" not in str(binary["command"])


def render(told: Explanation, fit: int | None) -> list[Line]:
    """For a person: the cause first, the thing to do last."""
    status = str(told["status"])
    because = short_message(told["because"])
    lines: list[Line] = [
        [
            paint(str(told["server"]), "bold"),
            " is ",
            painted_state(told),
            f" since {format_time(told['since'])}",
        ],
        ["because ", because if status in READY else paint(because, "yellow")],
    ]
    if told["retry_at"]:
        lines.append([f"and is tried again {until(told['retry_at'])}"])
    rows = [*_evidence(mapping(told["evidence"])), *_binary_rows(mapping(told["binary"]))]
    if told["url"]:
        rows.append(("url", str(told["url"])))
    if told["down_since"] and str(told["down_since"])[:19] < str(told["since"])[:19]:
        rows.insert(0, ("down since", format_time(told["down_since"])))
    # What the shell has besides is a hint only where something is wrong.
    if status in ("failed", "pending"):
        rows += _environment_rows(mapping(told["environment"]))
    if rows:
        lines += [[], *labelled_lines(rows)]
    lines += ([paint("   warning: ", "yellow"), warning] for warning in strings(told["warnings"]))
    if entries := objects(told["history"]):
        lines += [[], *history_table(entries, servers=False, fit=fit)]
    return [*lines, [], [paint("next: ", "dim"), str(told["next"])]]


def _evidence(evidence: Json) -> list[tuple[str, str]]:
    if not evidence:
        return []
    left = exit_details(evidence)
    kind = f"{evidence.get('kind')} ({', '.join(left)})" if left else str(evidence.get("kind"))
    rows = [("evidence", f"{kind}, {ago(evidence.get('at'))}")]
    if noise := evidence.get("noise"):
        rows.append(("stdout", str(noise)))
    said = [line for line in strings(evidence.get("stderr")) if line.strip()]
    return rows + [("it said", line) for line in said[-_STDERR_LINES:]]


def _binary_rows(binary: Json) -> list[tuple[str, str]]:
    if not binary:
        return []
    command, found, in_shell = binary.get("command"), binary.get("found"), binary.get("in_login_shell")
    missing = "was not found" if _uses_path(binary) else "cannot be run"
    rows = [("runs", str(found) if found else f"nothing: {command} {missing}")]
    if not found and _uses_path(binary):
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
