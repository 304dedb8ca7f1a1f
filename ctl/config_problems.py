"""What the commands say about errors and warnings of the configuration, and what they affect.

`mcpctl status` runs in shell prompts, so this module must not import click, rich or attrs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctl.output import Line, paint
from ctl.terminal_text import ago

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import ConfigStatus, Problem, ServerStatus


def config_problem_lines(config: ConfigStatus, servers: Sequence[ServerStatus]) -> list[Line]:
    """Return the errors in the configuration file, what they affect, and the next step; nothing if there are
    none."""
    problems = config.get("problems")
    if not problems:
        return []
    from ctl.next_steps import config_step  # here, because the table does not need it

    return [
        [],
        [
            paint("The configuration file has errors", "red"),
            f"; {effect_of_problems(config, servers)}: {config['path']}",
        ],
        *problem_lines(problems),
        [paint("next: ", "dim"), config_step(problems, config["path"])],
    ]


def problem_lines(problems: Sequence[Problem]) -> list[Line]:
    """Return one line per problem of a document: where, what, and how to fix it."""
    return [
        [f"  {problem['path']}: {problem['message']}{f' ({fix})' if (fix := problem.get('fix')) else ''}"]
        for problem in problems
    ]


def effect_of_problems(config: ConfigStatus, servers: Sequence[ServerStatus]) -> str:
    """Return what mcpd uses instead of the entries with errors."""
    owners = [_server_without_definition(problem, servers) for problem in config["problems"]]
    missing = ", ".join(dict.fromkeys(name for name in owners if name))
    effects = [f"cannot start {missing}"] if missing else []
    if config.get("rejected", not all(owners)):
        is_copy = config["source"] not in (config["path"], "api", "none") and not config["source"].startswith(
            "$"
        )
        used = "last valid configuration, saved" if is_copy else "configuration loaded"
        effects.append(f"using the {used} {ago(config['loaded_at'])}")
    elif any(".policies" in problem["path"] for problem in config["problems"]):
        effects.append("every use is denied until the rules have no errors")
    return "; ".join(effects) or "entries with errors are not used"


def _server_without_definition(problem: Problem, servers: Sequence[ServerStatus]) -> str:
    """Return the server that cannot start because of a problem; empty if there is none."""
    for server in servers:
        failure = server.get("last_error")
        if failure and failure["kind"] == "config" and f"@ {problem['path']}" in failure["message"]:
            return server["name"]
    return ""


def config_warning_lines(config: ConfigStatus) -> list[Line]:
    """Return the first warning, and where to find the others: at most two lines."""
    first, *rest = config.get("warnings") or [""]
    if not first or first.startswith("no configuration yet"):  # which the text for the first run says
        return []
    more = f" ({len(rest)} more: mcpctl config validate)" if rest else ""
    return [[], [paint("warning: ", "yellow"), f"{first}{more}"]]
