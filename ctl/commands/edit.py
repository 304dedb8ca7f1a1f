"""`mcpctl edit`: the configuration file in the user's editor, put into force only when it is good."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from ctl.context import CliContext
from ctl.errors import CtlError, DaemonError, DaemonUnreachable, UsageError
from ctl.output import paint
from mcpd.config.loader import default_path, parse_config
from mcpd.model.errors import BadSpec

EDITORS = ("sensible-editor", "editor", "nano", "vi")
_EMPTY_FILE = '{\n  "mcpServers": {\n  }\n}\n'
"""What a configuration that is not there yet begins with."""


@click.command(epilog="Examples:\n\n\b\n  mcpctl edit\n  EDITOR='code --wait' mcpctl edit")
@click.pass_obj
def edit(cli: CliContext) -> int:
    """Edit the configuration file, checked before it counts.

    A copy is opened with $VISUAL or $EDITOR. When the editor ends it is checked: with mistakes you may go
    back to it, drop your changes, or keep the file as it is; without, the file is replaced and the daemon
    reads it.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to edit on", hint="$EDITOR $(mcpctl config path); mcpctl reload"
        )
    path, watched = configuration_path(cli)
    before = path.read_bytes() if path.exists() else None
    with tempfile.TemporaryDirectory(prefix="mcpctl-edit-") as directory:  # 0700
        draft = Path(directory) / path.name
        draft.write_bytes(
            _EMPTY_FILE.encode() if before is None and path.suffix in (".json", ".jsonc") else before or b""
        )
        opened = draft.read_bytes()
        while True:
            _run_editor(draft)
            data = draft.read_bytes()
            if data == opened:
                cli.out.line("nothing was changed")
                return 0
            problem = _validate(path, data)
            if problem is None:
                break
            cli.out.error(problem)
            choice = click.prompt(
                "[e]dit again, [d]rop the changes, [k]eep it though mcpd will refuse it",
                type=click.Choice(["e", "d", "k"]),
                default="e",
                show_choices=False,
                err=True,
            )
            if choice == "d":
                cli.out.line(f"{path} is as it was")
                return 1
            if choice == "k":
                break
    return _save(cli, path, before, data, watched)


def configuration_path(cli: CliContext) -> tuple[Path, bool]:
    """The configuration file, there or not, and whether a daemon is there that uses it. Starts none."""
    cli.may_start = False
    try:
        return Path(str(cli.call("mcpd/config", timeout=10.0).value.get("path"))), True
    except DaemonUnreachable:
        try:
            return default_path(os.environ), False
        except BadSpec as error:
            raise DaemonError({"message": str(error), "data": error.data()}) from None


def _run_editor(draft: Path) -> None:
    written = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    words = shlex.split(written) if written else []
    if not words:
        found = next((name for name in EDITORS if shutil.which(name)), None)
        if found is None:
            raise CtlError("there is no editor", hint="set EDITOR")
        words = [found]
    try:
        ended = subprocess.run([*words, str(draft)], check=False)
    except OSError as error:
        raise CtlError(f"cannot start {words[0]}: {error.strerror}", hint="set EDITOR") from None
    if ended.returncode:
        raise CtlError(f"{words[0]} ended with {ended.returncode}, so nothing was changed")


def _validate(path: Path, data: bytes) -> DaemonError | None:
    try:
        parse_config(path, data, os.environ)
    except BadSpec as error:
        return DaemonError({"message": str(error), "data": error.data()})
    return None


def _save(cli: CliContext, path: Path, before: bytes | None, data: bytes, there: bool) -> int:
    from mcpd.support.atomic_files import write_atomically

    if (path.read_bytes() if path.exists() else None) != before:
        kept = path.with_name(f"{path.name}.yours")
        try:
            write_atomically(kept, data, 0o600)
        except OSError:
            kept = _save_copy(path, data)
        raise CtlError(f"{path} was changed by somebody else meanwhile; yours is {kept}", hint="mcpctl edit")
    try:
        write_atomically(path, data)
    except OSError as error:
        kept = _save_copy(path, data)
        message = f"cannot write {path}: {error.strerror}; what you wrote is {kept}"
        raise CtlError(message, hint=f"when that is mended: cp {kept} {path}") from None
    cli.out.line(f"written to {path}")
    if there:
        from ctl.commands.servers import show_applied

        return show_applied(cli, cli.call("mcpd/reload"))
    cli.out.message(paint("note: ", "dim"), "mcpd is not running; it will read it when it starts")
    return 0


def _save_copy(path: Path, data: bytes) -> Path:
    """What somebody wrote, where temporary files are: it is not to be lost."""
    handle, name = tempfile.mkstemp(prefix="mcpctl-edit-", suffix=path.suffix)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return Path(name)
