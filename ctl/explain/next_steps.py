"""The suggested next command; mcpd/config/next_step.py chooses the one for a server."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import ServerDetail
    from mcpd.config.next_step import Shell


def next_step(detail: ServerDetail, login: Mapping[str, str] | None = None) -> str:
    """Return the command, followed by a remark in parentheses on what to do there.

    `login` is the environment of the login shell, if it is known. Programs are looked for in the PATH of this
    process first.
    """
    from mcpd.config import next_step as decision

    return decision.next_step(detail, this_shell(login))


def this_shell(login: Mapping[str, str] | None) -> Shell:
    """Return what this terminal knows about programs; `login` as in `next_step`."""
    from mcpd.config.next_step import Shell

    login_path = (login or {}).get("PATH", "")
    path = os.environ.get("PATH", "")
    return Shell(path, login_path, has_service=_has_service, variables=os.environ)


def _has_service() -> bool:
    from ctl.daemon import systemd

    return systemd.is_installed()


def config_step(problems: Iterable[Mapping[str, object]], fix: object = "") -> str:
    """Return the step for a configuration file with errors. `fix` is a remark on what to change in it.

    A variable that is not set has to be set in the environment of mcpd.
    """
    return variable_step(problems) or (f"mcpctl edit   ({fix})" if fix else "mcpctl edit")


def variable_step(problems: Iterable[Mapping[str, object]]) -> str:
    """Return the step for problems that are all variables that are not set; otherwise an empty string."""
    from mcpd.config.next_step import unset_variable_step, unset_variables

    names = unset_variables(str(each.get("message")) for each in problems)
    return unset_variable_step(names, this_shell(None)) if names else ""
