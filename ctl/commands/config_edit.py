"""`mcpctl config` and `edit`: validate, show, locate, restore and edit the configuration file."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import click

from ctl.cli.errors import CtlError, DaemonError, UsageError, WriteFailed
from ctl.cli.invocation import CliContext
from ctl.cli.output import Line, labelled_lines, paint, table
from ctl.cli.text import count
from ctl.commands.add_remove_apply import apply, reload, show_applied
from ctl.explain.config_check import check_config, configuration_path, file_elsewhere
from mcpd.config import definition_view
from mcpd.config.check_document import ConfigDocument
from mcpd.config.loader import NO_FILE, parse_document, read_document
from mcpd.files.atomic import write_atomically
from mcpd.model.errors import BadSpec

EDITORS = ("sensible-editor", "editor", "nano", "vi")
_EMPTY_FILE = '{\n  "mcpServers": {\n  }\n}\n'
"""The initial text of a new configuration file."""


@click.group(epilog="Examples:\n\n\b\n  mcpctl config validate\n  mcpctl config path")
def config() -> None:
    """Validate, show, locate, reload or replace the configuration."""


config.add_command(apply)
config.add_command(reload)


@config.command(
    epilog="Examples:\n\n\b\n  mcpctl config validate\n  mcpctl config validate ./servers.yaml --json"
)
@click.argument("file", required=False, type=click.Path())
@click.pass_obj
def validate(cli: CliContext, file: str | None) -> int:
    """Validate a configuration file without applying it.

    Without FILE, validates the file that mcpd would read. A running daemon checks it, because its environment
    may have other variables than this shell. Does not need one. If the file is invalid, lists all errors with
    their location and fix, and exits with 2.
    """
    try:
        document = read_document(Path(file) if file else _file_of_daemon(cli), os.environ)
        checked = check_config(cli, document, _content(document))
    except BadSpec as error:
        raise DaemonError({"message": f"{error.source or file} is invalid", "data": error.data()}) from None
    warnings = list(checked.warnings)
    for warning in warnings:
        cli.out.warning(warning)
    names = checked.servers
    if cli.out.json:
        cli.out.json_value({"source": document.source, "servers": names, "warnings": warnings})
    elif document.source == NO_FILE:
        cli.out.line(f"{document.path} does not exist yet; no servers are configured")
    else:
        cli.out.line(
            f"{document.source}: valid, {count(len(names), 'server')}",
            f": {', '.join(names)}" if names else "",
        )
    return 0


def _file_of_daemon(cli: CliContext) -> Path | None:
    """Return the file of the daemon; None if this shell leads to it, or the daemon does not answer."""
    try:
        return file_elsewhere(configuration_path(cli)[0], os.environ)
    except CtlError:
        return None


def _content(document: ConfigDocument) -> bytes | None:
    """Return the bytes of a document's file; None if it has no file, or has changed since it was read."""
    if document.source != str(document.path):
        return None
    try:
        data = document.path.read_bytes()
    except OSError:
        return None
    return data if sha256(data).hexdigest() == document.digest else None


@config.command(epilog="Examples:\n\n\b\n  mcpctl config show\n  mcpctl config show --json")
@click.pass_obj
def show(cli: CliContext) -> int:
    """Show the active configuration, with secrets masked."""
    reply = cli.call("mcpd/config")
    if cli.show_json(reply):
        return 0
    view = reply.value
    cli.out.lines(
        labelled_lines(
            [("source", view["source"]), ("path", view["path"]), ("generation", str(view["generation"]))]
        )
    )
    rows: list[Line] = []
    for name, definition in view["servers"].items():
        target = definition_view.url(definition) or shlex.join(definition_view.command(definition))
        rows.append([name, "yes" if definition_view.is_enabled(definition) else "no", target])
    if rows:
        cli.out.line()
        cli.out.lines(table(("SERVER", "ENABLED", "COMMAND OR URL"), rows, fit=cli.out.columns))
    return 0


@config.command(epilog="Examples:\n\n\b\n  mcpctl config path\n  $EDITOR $(mcpctl config path)")
@click.pass_obj
def path(cli: CliContext) -> int:
    """Print the path of the configuration file.

    Asks the running daemon, or works out the path that a new one would use. The file may not exist yet. Never
    starts the daemon.
    """
    found = str(configuration_path(cli)[0])
    cli.out.answer({"path": found}, found)
    return 0


@click.command(epilog="Examples:\n\n\b\n  mcpctl edit\n  EDITOR='code --wait' mcpctl edit")
@click.pass_obj
def edit(cli: CliContext) -> int:
    """Edit the configuration file and validate it before applying it.

    Opens a copy with $VISUAL or $EDITOR. When you close the editor, the copy is validated. If it is valid, it
    replaces the file and the daemon reloads it. If it has errors, you can edit again, discard your changes or
    save the file anyway.
    """
    if not sys.stdin.isatty():
        raise UsageError("no terminal to edit on", hint="$EDITOR $(mcpctl config path); mcpctl config reload")
    path, running = configuration_path(cli)
    before = path.read_bytes() if path.exists() else None
    with tempfile.TemporaryDirectory(prefix="mcpctl-edit-") as directory:  # 0700
        draft = Path(directory) / path.name
        empty = _EMPTY_FILE if path.suffix in (".json", ".jsonc") else ""
        draft.write_bytes(empty.encode() if before is None else before)
        opened = draft.read_bytes()
        while True:
            _run_editor(draft)
            data = draft.read_bytes()
            if data == opened:
                cli.out.line("no changes")
                return 0
            try:
                checked = check_config(cli, parse_document(path, data), data)
                for warning in checked.warnings if not running else ():  # reloading shows them, too
                    cli.out.warning(warning)
                break
            except BadSpec as error:
                cli.out.error(DaemonError({"message": str(error), "data": error.data()}))
            choice = click.prompt(
                "[e]dit again, [d]iscard the changes, [k]eep them although mcpd will reject the file",
                type=click.Choice(["e", "d", "k"]),
                default="e",
                show_choices=False,
                err=True,
            )
            if choice == "d":
                cli.out.line(f"{path} was not changed")
                return 1
            if choice == "k":
                break
    return _save(cli, path, before, data, running)


def _run_editor(draft: Path) -> None:
    words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not words:
        found = next((name for name in EDITORS if shutil.which(name)), None)
        if found is None:
            raise CtlError("no editor found", hint="set EDITOR")
        words = [found]
    try:
        ended = subprocess.run([*words, str(draft)], check=False)
    except OSError as error:
        raise CtlError(f"cannot start {words[0]}: {error.strerror}", hint="set EDITOR") from None
    if ended.returncode:
        raise CtlError(f"{words[0]} exited with status {ended.returncode}; nothing was changed")


def _save(cli: CliContext, path: Path, before: bytes | None, data: bytes, running: bool) -> int:
    if (path.read_bytes() if path.exists() else None) != before:
        copy = path.with_name(f"{path.name}.yours")
        try:
            write_atomically(copy, data, 0o600)
        except OSError:
            copy = _save_copy(path, data)
        message = f"{path} changed on disk while you were editing; your version was saved as {copy}"
        raise CtlError(message, hint="mcpctl edit")
    try:
        write_atomically(path, data)
    except OSError as error:
        copy = _save_copy(path, data)
        message = f"cannot write {path}: {error.strerror}; your version was saved as {copy}"
        raise WriteFailed(message, hint=f"after fixing this, run: cp {copy} {path}") from None
    reloaded = cli.call("mcpd/reload") if running else None
    if cli.out.json:
        cli.out.json_value({"saved": str(path), "reloaded": None if reloaded is None else reloaded.value})
        return 0
    cli.out.line(f"saved in {path}")
    if reloaded is not None:
        return show_applied(cli, reloaded)
    cli.out.message(paint("note: ", "dim"), "mcpd is not running; it reads the file when it starts")
    return 0


def _save_copy(path: Path, data: bytes) -> Path:
    """Save the user's text in the directory for temporary files, so that it is not lost."""
    handle, name = tempfile.mkstemp(prefix="mcpctl-edit-", suffix=path.suffix)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return Path(name)
