"""The entry point of mcpctl: the fast path, the exception boundary, the exit code and standard streams.

`mcpctl status` runs in shell prompts, status bars and loops, `mcpctl bridge` once per editor window. Building
the full command line costs twice as much as the rest, so their simple forms are parsed here by hand.
Everything else goes to click. Both paths end in the same function, so they behave the same.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence

from ctl.cli.errors import CtlError

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it costs 3 ms on every run
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ctl.cli.invocation import CliContext

COMPLETION = "_MCPCTL_COMPLETE"
"""Set by the shell when it wants completions (click's protocol)."""


def main() -> None:
    prepare_standard_streams()
    sys.exit(run(sys.argv[1:], os.environ))


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command line and return its exit code. Never raises for errors of users or servers."""
    warnings.showwarning = lambda *_, **__: None  # a library's may quote a file with secrets
    simple = None if COMPLETION in environ else _parse_simple(argv)
    if simple is not None and simple[0] == ["bridge"]:
        return _bridge(simple[1], environ)
    for stream in (sys.stdout, sys.stderr):
        # Text that the terminal's encoding lacks must not cause a traceback.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # TextIO has no such method
    from ctl.cli.invocation import CliContext

    cli = CliContext(environ)
    try:
        return _run(cli, argv, simple, environ)
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        # For example a full disk; it may affect our own output too.
        _discard_output()
        where = f"{error.filename}: " if error.filename else "I/O error: "
        shown = CtlError(f"{where}{error.strerror or error}")
        if cli.has_called:
            shown.details["may_have_run"] = True
        _show_error(cli, shown)
        return 1
    finally:
        _discard_unwritable_errors()
        cli.close()


def _run(
    cli: CliContext, argv: Sequence[str], simple: SimpleCommand | None, environ: Mapping[str, str]
) -> int:
    """Run one command line and write all of its output. Raises OSError if that is not possible."""
    try:
        if simple is None:
            from ctl.cli.app import run_app

            code = run_app(cli, argv, environ)
        else:
            code = _status(cli, *simple)
        cli.out.flush()
        return code
    except CtlError as error:
        cli.out.flush()
        _show_error(cli, error)
        return error.exit
    except KeyboardInterrupt:
        cli.out.end_progress()
        return 130


def _show_error(cli: CliContext, error: CtlError) -> None:
    """Print an error. If stderr cannot be written either, the exit code has to be enough."""
    try:
        cli.out.error(error)
    except OSError:
        _discard_unwritable_errors()


def _discard_unwritable_errors() -> None:
    """Discard what stderr did not take. Otherwise Python exits with 120 after it has failed to flush it."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _discard_output() -> None:
    """Discard what is left of the output. Otherwise Python reports another error when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


SimpleCommand = tuple[list[str], dict[str, str]]
"""The arguments of a command line, and its options."""

_BRIDGE_OPTIONS = ("--server", "--profile", "--client", "--surface")


def _status(cli: CliContext, arguments: list[str], options: Mapping[str, str]) -> int:
    cli.socket_option = options.get("--socket", "")
    cli.out.json |= "--json" in options
    cli.may_start &= "--no-start" not in options
    if len(arguments) == 2:
        from ctl.explain.server import show_servers

        return show_servers(cli, arguments[1:])
    from ctl.show.status import show_table

    return show_table(cli)


def _bridge(options: Mapping[str, str], environ: Mapping[str, str]) -> int:
    from ctl.bridge.daemon_link import AttachTarget
    from ctl.bridge.loop import run as run_bridge

    target = AttachTarget(
        options.get("--server"),
        options.get("--profile"),
        options.get("--client", ""),
        surface=options.get("--surface"),
    )
    may_start = "--no-start" not in options and environ.get("MCPD_NO_START", "") in ("", "0")
    return run_bridge(target, environ, options.get("--socket", ""), may_start)


def _parse_simple(argv: Sequence[str]) -> SimpleCommand | None:
    """Parse `status`, `status SERVER` or `bridge` with well-formed options; None for anything else."""
    arguments: list[str] = []
    options: dict[str, str] = {}
    rest = iter(argv)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in ("--json", "--no-start"):
            options[argument] = "yes"
        elif name == "--socket" or name in _BRIDGE_OPTIONS:
            options[name] = value if equals else next(rest, "")
        elif argument.startswith("-") or not argument:
            return None
        else:
            arguments.append(argument)
    if not all(options.values()) or options.get("--surface") not in (None, "auto", "full", "search"):
        return None
    if arguments == ["bridge"]:
        return arguments, options
    if arguments[:1] != ["status"] or len(arguments) > 2 or not options.keys().isdisjoint(_BRIDGE_OPTIONS):
        return None
    return arguments, options


def prepare_standard_streams() -> None:
    """Prepare stdin, stdout and stderr of this process. Call it once, before anything is printed.

    Every write to stdout then writes everything or raises OSError, at the latest when it is flushed. With
    PYTHONUNBUFFERED, Python's own stream writes once and drops what a full disk or pipe did not take.
    """
    _reopen_closed_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream.flush()
        setattr(sys, name, _buffered(stream))


def _reopen_closed_streams() -> None:
    """Open /dev/null for closed standard streams, or the next opened file would take their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _buffered(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream for the same descriptor, whose buffer repeats a partial write until all is written."""
    return io.TextIOWrapper(
        io.BufferedWriter(_BlockingFile(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering or stream.isatty(),
    )


class _BlockingFile(io.FileIO):
    """A file that waits until a non-blocking descriptor accepts data, as a blocking one does."""

    def write(self, data: ReadableBuffer, /) -> int:
        while (written := super().write(data)) is None:
            import select  # only a descriptor that another program made non-blocking needs it

            poll = select.poll()
            poll.register(self.fileno(), select.POLLOUT)
            poll.poll()
        return written
