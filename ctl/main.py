"""The entry of `mcpctl`: the fast path, the one exception boundary, the exit code.

`mcpctl status` runs in prompts, status bars and loops, `mcpctl bridge` once for each window of an editor.
Building the command line costs more than twice what the rest does, so their plain forms are recognised here
by hand, and everything else, with anything unusual about it, goes to click. Both ways end in the same
function, so they cannot differ.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ctl.errors import CtlError

TYPE_CHECKING = False  # checkers know the name; `typing` takes long to import
if TYPE_CHECKING:
    from ctl.context import CliContext

COMPLETION = "_MCPCTL_COMPLETE"
"""Set by the shell when it wants completions (click's protocol)."""

COLOR_CHOICES = ("auto", "always", "never")


def main() -> None:
    """The console script."""
    _reopen_closed_streams()
    sys.exit(run(sys.argv[1:], os.environ))


def _reopen_closed_streams() -> None:
    """For `mcpctl … >&-`: whatever is opened next would be taken for our output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115 - until the end


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """One run of mcpctl, up to its exit code. Never raises for what a person or a server can cause."""
    plain = None if COMPLETION in environ else _parse_simple(argv)
    if plain is not None and plain[0] == ["bridge"]:
        return _bridge(plain[1], environ)
    for stream in (sys.stdout, sys.stderr):
        # Text that the terminal's encoding does not have must not end in a traceback.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # TextIO has no such method
    from ctl.context import CliContext

    cli = CliContext(environ)
    try:
        code = _dispatch(cli, plain, argv, environ)
        cli.out.flush()
        return code
    except CtlError as error:
        cli.out.error(error)
        return error.exit
    except KeyboardInterrupt:
        cli.out.end_progress()
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        # A disk that is full or broken, wherever we met it: our own output too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        where = f"{error.filename}: " if error.filename else "cannot write or read: "
        cli.out.error(CtlError(f"{where}{error.strerror or error}"))
        return 1
    finally:
        cli.close()


SimpleCommand = tuple[list[str], dict[str, str]]
"""The words of a command line, and its options."""

_OF_ALL = ("--socket", "--color")
_OF_BRIDGE = ("--server", "--profile", "--client")


def _dispatch(
    cli: CliContext, plain: SimpleCommand | None, argv: Sequence[str], environ: Mapping[str, str]
) -> int:
    if plain is not None:
        from ctl.status import show_status

        words, options = plain
        cli.socket_option = options.get("--socket", "")
        cli.out.color = options.get("--color", cli.out.color)
        cli.out.json |= "--json" in options
        cli.may_start &= "--no-start" not in options
        return show_status(cli, words[1] if len(words) == 2 else None)
    from ctl.app import run_app

    return run_app(cli, argv, environ)


def _bridge(options: Mapping[str, str], environ: Mapping[str, str]) -> int:
    from ctl.bridge.loop import BridgeOptions
    from ctl.bridge.loop import run as run_bridge

    return run_bridge(
        BridgeOptions(
            socket=options.get("--socket", ""),
            may_start="--no-start" not in options and environ.get("MCPD_NO_START", "") in ("", "0"),
            server=options.get("--server"),
            profile=options.get("--profile"),
            client=options.get("--client", ""),
        ),
        environ,
    )


def _parse_simple(argv: Sequence[str]) -> SimpleCommand | None:
    """`status`, `status SERVER` or `bridge`, when there is nothing else but well-formed options of theirs."""
    words: list[str] = []
    options: dict[str, str] = {}
    rest = iter(argv)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in ("--json", "--no-start"):
            options[argument] = "yes"
        elif name in _OF_ALL or name in _OF_BRIDGE:
            options[name] = value if equals else next(rest, "")
        elif argument.startswith("-") or not argument:
            return None
        else:
            words.append(argument)
    if not all(options.values()) or options.get("--color", "auto") not in COLOR_CHOICES:
        return None
    if words == ["bridge"]:
        return words, options
    if words[:1] != ["status"] or len(words) > 2 or not options.keys().isdisjoint(_OF_BRIDGE):
        return None
    return words, options
