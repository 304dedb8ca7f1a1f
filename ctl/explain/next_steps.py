"""The suggested next command; mcpd/config/next_step.py chooses the one for a server."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from ctl.api_types import ServerDetail
    from mcpd.config.next_step import Shell

OTHER_PROGRAM = "another program named mcpd"
"""In the message about a configuration file that is not ours (mcpd/config/loader.py)."""


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


def config_step(problems: Iterable[Mapping[str, object]], path: object, fix: object = "") -> str:
    """Return the step for a configuration file with errors. `fix` is a remark on what to change in it.

    The file of another program must not be edited, so it is moved and its servers are imported. A variable
    that is not set has to be set in the environment of mcpd. Of several files, all but `path` are moved. A
    file that was deleted is restored.
    """
    problems = list(problems)
    if several := next((found for each in problems if (found := _several_files(each.get("message")))), None):
        return _move_all_but_one(several, str(path))
    if step := variable_step(problems):
        return step
    if path and any(OTHER_PROGRAM in str(each.get("message")) for each in problems):
        import shlex

        directory, _, name = str(path).rpartition("/")
        moved = shlex.quote(f"{directory}/other-{name}")
        return f"mv {shlex.quote(str(path))} {moved} && mcpctl import {moved}"
    return f"mcpctl edit   ({fix})" if fix else "mcpctl edit"


def _several_files(message: object) -> list[str]:
    """Return the files between which mcpd cannot choose (mcpd/config/loader.py); none for other problems."""
    before, found, files = str(message).partition(" configuration files: ")
    return files.split(", ") if found and before.startswith("there are ") else []


def _move_all_but_one(files: list[str], path: str) -> str:
    import shlex

    kept = path if path in files else files[0]
    moves = [shlex.join(["mv", file, f"{file}.unused"]) for file in files if file != kept]
    return f"{' && '.join(moves)}   (keeps {kept}; or move that one)"


def variable_step(problems: Iterable[Mapping[str, object]]) -> str:
    """Return the step for problems that are all variables that are not set; otherwise an empty string."""
    from mcpd.config.next_step import unset_variable_step, unset_variables

    names = unset_variables(str(each.get("message")) for each in problems)
    return unset_variable_step(names, this_shell(None)) if names else ""
