"""The entry of `mcpctl`: the fast path, the one exception boundary, the exit code.

`mcpctl status` runs in prompts, status bars and loops. Building the command line costs more than twice
what the rest of it does, so its plain forms are recognised here by hand, and everything else, with
anything unusual about it, goes to click. Both end in `ctl.status`, so they cannot differ.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ctl.errors import CtlError
from ctl.session import Session
from ctl.status import show_status

COMPLETION = "_MCPCTL_COMPLETE"
"""Set by the shell when it wants completions (click's protocol)."""

COLOR_CHOICES = ("auto", "always", "never")


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:], os.environ))


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """One run of mcpctl, up to its exit code. Never raises for what a person or a server can cause."""
    for stream in (sys.stdout, sys.stderr):
        # Text that the terminal's encoding does not have must not end in a traceback.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # TextIO has no such method
    session = Session(environ)
    try:
        code = _dispatch(session, argv, environ)
        session.out.flush()
        return code
    except CtlError as error:
        session.out.error(error)
        return error.exit
    except KeyboardInterrupt:
        session.out.end_progress()
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    finally:
        session.close()


def _dispatch(session: Session, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if COMPLETION not in environ and (words := _plain_status(session, argv)) is not None:
        return show_status(session, words[1] if len(words) == 2 else None)
    from ctl.app import run_app

    return run_app(session, argv, environ)


def _plain_status(session: Session, argv: Sequence[str]) -> list[str] | None:
    """`["status"]` or `["status", SERVER]` when that is all there is, with its options put into `session`."""
    words: list[str] = []
    options: dict[str, str] = {}
    rest = iter(argv)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument in ("--json", "--no-start"):
            options[argument] = "yes"
        elif name in ("--socket", "--color"):
            options[name] = value if equals else next(rest, "")
        elif argument.startswith("-") or not argument:
            return None
        else:
            words.append(argument)
    if words[:1] != ["status"] or len(words) > 2:
        return None
    if not options.get("--socket", "x") or options.get("--color", "auto") not in COLOR_CHOICES:
        return None
    session.chosen_socket = options.get("--socket", "")
    session.out.color = options.get("--color", session.out.color)
    session.out.json |= "--json" in options
    session.may_start &= "--no-start" not in options
    return words
