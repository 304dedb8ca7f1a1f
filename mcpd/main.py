"""The `mcpd` command: parse the command line, load the configuration, run the daemon.

Exit codes: 0 stopped normally, 1 cannot replace a running daemon, 2 invalid configuration or command line,
3 another daemon uses the socket, 78 a path cannot be used (EX_CONFIG).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mcpd import __version__

if TYPE_CHECKING:  # imported below, so that --version starts fast
    from mcpd.config.check_document import LoadedConfig
    from mcpd.config.http import HttpSettings
    from mcpd.model.errors import BadSpec

_OFF = ("", "0", "false", "no", "off")
"""Values of MCPD_DEBUG that do not turn it on."""
EXIT_OK, EXIT_FAILURE, EXIT_USAGE, EXIT_ALREADY_RUNNING, EXIT_UNUSABLE_PATH = 0, 1, 2, 3, 78


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `mcpd` and exit; the entry point of the console script."""
    sys.exit(_main(sys.argv[1:] if argv is None else argv, os.environ))


def _main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    arguments = argument_parser().parse_args(argv)

    import attrs

    from mcpd.config.http import HttpSettings, parse_address
    from mcpd.config.load_at_start import load_at_start
    from mcpd.config.loader import load
    from mcpd.files import paths
    from mcpd.model.errors import BadSpec
    from mcpd.privacy import logs
    from mcpd.process import replacement

    logs.log_library_warnings()
    task = replacement.find_task(os.environ)
    http = None
    if arguments.http is not None:
        try:
            http = parse_address(arguments.http)
        except ValueError as error:
            print(f"mcpd: --http {arguments.http}: {error}", file=sys.stderr)
            return EXIT_USAGE
    if arguments.socket is not None:
        environ = {**environ, "MCPD_SOCKET": arguments.socket}
    try:
        if arguments.validate_config:
            return _print_validation(load(arguments.config, environ))
        loaded = load_at_start(arguments.config, environ, Path(paths.state_dir(environ)))
    except BadSpec as error:
        _print_problems(error)
        return EXIT_USAGE
    except paths.UnusablePath as error:
        print(f"mcpd: {error}", file=sys.stderr)
        return EXIT_UNUSABLE_PATH
    settings = loaded.settings.http
    if http is not None:
        settings = HttpSettings(listen=http) if settings is None else attrs.evolve(settings, listen=http)
    if settings is not None and (problem := _problem_with(settings, arguments.http_auth)):
        print(f"mcpd: {problem}", file=sys.stderr)
        return EXIT_USAGE
    return _run(arguments, environ, loaded, settings, task)


def _problem_with(http: HttpSettings, auth: str) -> str:
    """Return why the command line does not fit the settings; empty if it does."""
    if auth == "none" and (http.jwt is not None or not http.listen.is_loopback):
        return f"--http-auth none: not possible, because other machines can use {http.listen}"
    return http.problem


def _run(
    arguments: argparse.Namespace,
    environ: Mapping[str, str],
    loaded: LoadedConfig,
    http: HttpSettings | None,
    task: tuple[str, int] | None,
) -> int:
    import attrs
    import trio  # imported here so that --validate-config starts fast

    from mcpd import daemon, upgrade
    from mcpd.files import paths
    from mcpd.privacy import logs
    from mcpd.privacy.redact import Redactor
    from mcpd.process.instance_lock import AlreadyRunning
    from mcpd.process.memory import limit_memory_growth
    from mcpd.process.replacement import CannotReplace

    debug = arguments.debug or environ.get("MCPD_DEBUG", "").lower() not in _OFF
    level = "debug" if debug else arguments.log_level or loaded.settings.log_level or "info"
    redactor = Redactor()
    redactor.add(loaded.secrets)
    limit_memory_growth()
    is_trial = task is not None and task[0] == "check"
    if is_trial:
        environ, http = {**environ, **upgrade.scratch_environment()}, None
    with logs.log_to_stderr(level, redactor):
        try:
            options = daemon.DaemonOptions(
                config_path=arguments.config,
                socket=paths.socket_path(environ),
                debug=debug,
                environ=dict(environ),
                loaded=loaded,
                http=http,
                is_http_option=arguments.http is not None,
                require_http_token=arguments.http_auth == "token",
            )
            taken = None
            if task is not None and is_trial:
                upgrade.check(task[1], loaded)
                options = attrs.evolve(options, on_started=upgrade.pass_trial)
            elif task is not None:
                taken = upgrade.take_over(task[1])
                redactor.add(taken.state.secrets)
                options = attrs.evolve(options, on_started=taken.predecessor.dismiss)
            trio.run(daemon.run, options, redactor, taken)
        except AlreadyRunning as error:
            print(f"mcpd: {error}", file=sys.stderr)
            return EXIT_ALREADY_RUNNING
        except CannotReplace as error:
            print(f"mcpd: {error}", file=sys.stderr)
            return EXIT_FAILURE
        except (paths.UnusablePath, OSError) as error:
            message = isinstance(error, OSError) and error.filename is None and error.strerror
            print(f"mcpd: {message or error}", file=sys.stderr)
            return EXIT_UNUSABLE_PATH
    return EXIT_OK


def _print_validation(loaded: LoadedConfig) -> int:
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    count = len(loaded.specs)
    print(f"{loaded.source}: {count} server{'' if count == 1 else 's'}, no errors")
    return EXIT_OK


def _print_problems(error: BadSpec) -> None:
    print(f"mcpd: {error.source or 'the configuration'} has errors:", file=sys.stderr)
    for problem in error.problems:  # as `mcpctl config validate` prints them
        fix = f" ({problem.fix})" if problem.fix else ""
        print(f"  {problem.path}: {problem.message}{fix}", file=sys.stderr)


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line. The manual page is generated from it."""
    from mcpd.privacy.logs import LEVELS

    parser = argparse.ArgumentParser(
        prog="mcpd",
        description="Keep one connection to each of your MCP servers and share it between all programs.",
        epilog="Environment: MCPD_CONFIG, MCPD_SERVERS (a JSON list; overrides the file), MCPD_SOCKET, "
        "MCPD_DEBUG=1. Signals: TERM and INT stop the daemon (twice: immediately), "
        "HUP reloads the configuration.",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file (.json, .yaml or .toml)"
    )
    parser.add_argument(
        "--socket", metavar="PATH", help="Unix socket (default: $XDG_RUNTIME_DIR/mcpd/mcpd.sock)"
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="also serve HTTP at this address; the settings say what else it needs",
    )
    parser.add_argument(
        "--http-auth",
        choices=("token", "none"),
        default="token",
        help="none: accept HTTP requests without the token (default: token)",
    )
    parser.add_argument("--log-level", choices=LEVELS, help="default: info")
    parser.add_argument("--debug", action="store_true", help="log every message and its timing")
    parser.add_argument("--validate-config", action="store_true", help="check the configuration and exit")
    parser.add_argument("--version", action="version", version=f"mcpd {__version__}")
    return parser
