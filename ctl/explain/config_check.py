"""Checks a configuration as the daemon does, with the variables that it has and a shell may lack."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ctl.cli.errors import CtlError, DaemonError, DaemonUnreachable
from ctl.cli.invocation import CliContext
from ctl.daemon import systemd
from mcpd.config.check_document import ConfigDocument, check
from mcpd.config.loader import candidate_paths, default_path
from mcpd.config.next_step import unset_variables
from mcpd.model.errors import BadSpec, Problem

if TYPE_CHECKING:
    from ctl.api_types import ConfigCheckParams

_TIMEOUT = 10.0
"""Seconds for the daemon to check a file. The largest take it a few."""


class CheckedConfig(NamedTuple):
    """A configuration without errors, apart from variables that a service may have."""

    servers: list[str]
    warnings: list[str]


class NextEnvironment(NamedTuple):
    """The environment of the daemon that would be started now."""

    variables: Mapping[str, str]
    of_service: bool
    """Whether systemd starts it."""

    def unset_warning(self, problem: Problem) -> str:
        """Return the warning for a variable that a service lacks: it affects only the server that needs it.

        Empty for other problems, and for a daemon that gets the environment of this shell.
        """
        names = unset_variables([problem.message])
        if not (names and self.of_service):
            return ""
        where = "in the environment of the service (EnvironmentFile, set-environment)"
        return f"{problem.path}: the environment variable {names[0]} is not set {where}"


def check_config(cli: CliContext, document: ConfigDocument, data: bytes | None) -> CheckedConfig:
    """Check a document. `data` are the bytes of its file; None if it does not come from one.

    A running daemon decides. Otherwise, the environment of the next one counts, and variables that only a
    service may have become warnings. Raises BadSpec. Starts no daemon.
    """
    if data is not None and (answer := _ask_daemon(cli, document, data)) is not None:
        return answer
    environment = next_environment(_socket(cli), os.environ)
    try:
        found = check(document, environment.variables)
    except BadSpec as error:
        warnings = [environment.unset_warning(problem) for problem in error.problems]
        if not all(warnings):
            raise
        names = sorted(str(name) for name, _, _ in document.layout.servers)
        return CheckedConfig(names, [*document.warnings, *warnings])
    return CheckedConfig(sorted(found.specs), list(found.warnings))


def next_environment(socket: str, environ: Mapping[str, str]) -> NextEnvironment:
    """Return the environment of a daemon that is started now for this socket, from a shell with `environ`."""
    of_service = bool(socket) and systemd.manages_socket(socket)
    variables: Mapping[str, str] = environ
    if of_service:
        with suppress(CtlError):  # systemctl does not answer
            variables = systemd.service_environment()
    return NextEnvironment(variables, of_service)


def configuration_path(cli: CliContext) -> tuple[Path, bool]:
    """Return the configuration file, which may not exist, and whether a daemon is running. Starts none."""
    cli.may_start = False
    with suppress(DaemonUnreachable):
        if not systemd.would_start_service(cli.socket):
            return Path(cli.call("mcpd/config", timeout=_TIMEOUT).value["path"]), True
    try:
        return default_path(next_environment(_socket(cli), os.environ).variables), False
    except BadSpec as error:
        raise DaemonError({"message": str(error), "data": error.data()}) from None


def file_elsewhere(path: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the daemon's file `path`, unless `environ` names a file itself or leads to the same one.

    A unit can name another file (`MCPD_CONFIG`) than the shell.
    """
    is_named = environ.get("MCPD_CONFIG") or environ.get("MCPD_SERVERS")
    return None if is_named or path in candidate_paths(None, environ) else path


def _socket(cli: CliContext) -> str:
    try:
        return cli.socket
    except DaemonUnreachable:
        return ""


def _ask_daemon(cli: CliContext, document: ConfigDocument, data: bytes) -> CheckedConfig | None:
    """Return what the daemon says; None if it is not running, or does not answer. Raises BadSpec."""
    cli.may_start = False
    try:
        if systemd.would_start_service(cli.socket):
            return None
        params: ConfigCheckParams = {"path": str(document.path), "text": data.decode("utf-8-sig")}
        answer = cli.call("mcpd/config/check", params, timeout=_TIMEOUT).value
    except CtlError:  # also one of an older daemon, which does not know the method
        return None
    if errors := answer["errors"]:
        problems = [Problem(each["path"], each["message"], each.get("fix", "")) for each in errors]
        raise BadSpec(problems, document.source)
    return CheckedConfig(list(answer["servers"]), list(answer["warnings"]))
