"""`mcpctl import`: take over the servers that editors have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import attrs
import click

from ctl.client import Reply
from ctl.complete import editors_and_files
from ctl.editors.catalogue import BY_NAME, EDITORS, Editor
from ctl.editors.home import Home, find_home, troubles
from ctl.editors.literals import Lifted, lifted, shown
from ctl.editors.merging import Merged, Server, merged
from ctl.editors.places import Surroundings, existing
from ctl.editors.showing import as_json, found_lines, what_runs
from ctl.editors.survey import Survey, survey, unfolded
from ctl.editors.variables import secret_reference
from ctl.errors import CtlError, Refused, Usage
from ctl.render import paint
from ctl.session import Session
from ctl.text import clean, count
from ctl.views import objects
from mcpd.config.edit import add_servers
from mcpd.config.formats import SUFFIXES
from mcpd.model.errors import BadSpec
from mcpd.support.atomic import write_atomically


@click.command(
    "import",
    epilog="Examples:\n\n\b\n  mcpctl import --dry-run\n  mcpctl import cursor claude-code\n"
    "  mcpctl import ~/backup/mcp.json --yes\n\n"
    f"Editors: {', '.join(BY_NAME)}.",
)
@click.argument("sources", metavar="[EDITOR|FILE]...", nargs=-1, shell_complete=editors_and_files)
@click.option("--server", "-s", "only", metavar="NAME", multiple=True, help="Only servers of this name.")
@click.option("--dry-run", is_flag=True, help="Show what would be imported; change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Import everything that can be, without asking.")
@click.option(
    "--unfold", is_flag=True, help="Reach what is behind mcp-remote by its URL, without mcp-remote."
)
@click.option("--disabled", is_flag=True, help="Import them switched off.")
@click.option(
    "--project",
    metavar="DIR",
    type=click.Path(file_okay=False, exists=True),
    help="Whose project files are read, and what ${workspaceFolder} means. [this directory]",
)
@click.pass_obj
def import_(
    session: Session,
    sources: tuple[str, ...],
    only: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    unfold: bool,
    disabled: bool,
    project: str | None,
) -> int:
    """Import the servers that your editors have.

    Reads the files of every editor it knows, or of those you name, shows each server with the exact
    command that would run, and asks. Nothing in the editors' files is changed.
    """
    around = Surroundings(os.environ, Path(project or ".").absolute(), project is not None)
    editors, files = chosen(sources)
    home = find_home(session)
    found = existing(editors, around) if editors else []
    if editors and sources and not found and not files:
        titles = " or ".join(editor.title for editor in editors)
        raise CtlError(
            f"no configuration of {titles} was found", hint="name the file itself: mcpctl import FILE"
        )
    seen = survey(found, files, around, home.addresses)
    if only:
        _keep_only(seen, only)
    if unfold:
        seen.candidates = [unfolded(one) for one in seen.candidates]
    plan = _plan(session, home, seen, disabled)
    answer = as_json(seen, plan.merged, plan.safe, plan.trouble) | {"path": str(home.path), "written": False}
    for warning in seen.warnings:
        session.out.talk(paint("warning: ", "yellow"), warning)
    if not session.out.json:
        session.out.lines(found_lines(seen, plan.merged, plan.safe, plan.trouble, around))
    servers = plan.possible
    if dry_run or not servers:
        if session.out.json:
            session.out.value(answer)
        return 0
    if not yes:
        if not sys.stdin.isatty():
            raise Usage(
                "nothing was written: importing needs --yes when nobody can be asked",
                hint="mcpctl import --yes, or --dry-run to see it only",
            )
        session.out.flush()
        servers = _asked(servers, home)
    definitions = {server.name: plan.complete(server, ask=not yes) for server in servers}
    if definitions:
        reply = _write(session, home, definitions)
        answer |= {"written": True, "imported": list(definitions), "reloaded": reply is not None}
    if session.out.json:
        session.out.value(answer)
    elif not definitions:
        session.out.line("nothing was imported")
    else:
        session.out.line(f"{count(len(definitions), 'server')} written to {home.path}")
        if not home.running:
            session.out.line("mcpd is not running; it will have them when it starts")
        session.out.talk(paint("next: ", "dim"), "mcpctl status, then mcpctl install EDITOR for each editor")
    return 0


def chosen(words: tuple[str, ...]) -> tuple[tuple[Editor, ...], list[Path]]:
    """The editors and the files that the words of a command line name; none: all editors. Raises Usage."""
    editors: list[Editor] = []
    files: list[Path] = []
    for word in words:
        path = Path(word).expanduser()
        if word in BY_NAME:
            editors.append(BY_NAME[word])
        elif path.exists() or os.path.sep in word or path.suffix in SUFFIXES:
            if not path.is_file():
                raise CtlError(f"there is no file {word}")
            files.append(path.absolute())
        else:
            raise unknown_editor(word)
    return (tuple(editors) if words else EDITORS), files


def unknown_editor(word: str) -> Usage:
    import difflib

    near = difflib.get_close_matches(word.lower(), BY_NAME, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(BY_NAME)}"
    return Usage(f"no such editor: {word}", hint=hint, suggestions=near)


@attrs.frozen
class _Plan:
    merged: Merged
    safe: dict[str, Lifted]
    trouble: dict[str, str]

    @property
    def possible(self) -> list[Server]:
        return [server for server in self.merged.servers if server.name not in self.trouble]

    def complete(self, server: Server, *, ask: bool) -> dict[str, object]:
        """The definition to be written. What only a person knows is asked for."""
        definition = server.definition
        for one in server.needed:
            value = one.value
            if value is None and ask:
                value = click.prompt(clean(f"{server.name}: {one.prompt}"), hide_input=True, err=True)
            definition = _replaced(definition, secret_reference(one.name), (value or "").replace("${", "$${"))
        return definition


def _plan(session: Session, home: Home, seen: Survey, disabled: bool) -> _Plan:
    whole = merged(
        seen.candidates, home.servers, os.environ, lambda one: len(lifted("x", one.definition, {}).literals)
    )
    if disabled:
        for server in whole.servers:
            server.definition["enabled"] = False
    taken: dict[str, str] = {}
    safe = {server.name: lifted(server.name, server.definition, taken) for server in whole.servers}
    tried = {server.name: _provisional(server) for server in whole.servers}
    trouble = troubles(session, home, tried)
    for server in whole.servers:
        missing = [one.name for one in server.needed if one.value is None]
        if missing and not sys.stdin.isatty():
            trouble.setdefault(server.name, f"it needs a secret that only you know: {', '.join(missing)}")
    return _Plan(whole, safe, trouble)


def _provisional(server: Server) -> dict[str, object]:
    """Its definition with something in the place of what it needs, to have the rest checked."""
    definition = server.definition
    for one in server.needed:
        definition = _replaced(definition, secret_reference(one.name), "x")
    return definition


def _replaced(value: dict[str, object], old: str, new: str) -> dict[str, object]:
    def walk(inner: object) -> object:
        if isinstance(inner, dict):
            return {key: walk(below) for key, below in inner.items()}
        if isinstance(inner, list):
            return [walk(below) for below in inner]
        return inner.replace(old, new) if isinstance(inner, str) else inner

    return {key: walk(inner) for key, inner in value.items()}


def _keep_only(seen: Survey, names: tuple[str, ...]) -> None:
    there = [one.name for one in seen.candidates] + [one.source.name for one in seen.candidates]
    for name in names:
        if name not in there:
            raise CtlError(f"no editor has a server {name}", hint="mcpctl import --dry-run shows all")
    seen.candidates = [one for one in seen.candidates if one.name in names or one.source.name in names]
    seen.passed = [one for one in seen.passed if one.source.name in names]


def _asked(servers: list[Server], home: Home) -> list[Server]:
    """Those that the person wants."""
    which = count(len(servers), "server")
    answer = click.prompt(
        f"Import {which} into {home.path}, and start what is not switched off? y: yes, n: no, c: choose",
        type=click.Choice(["y", "n", "c"]),
        default="n",
        show_choices=False,
        err=True,
    )
    if answer == "c":
        return [server for server in servers if click.confirm(_question(server), err=True)]
    return servers if answer == "y" else []


def _question(server: Server) -> str:
    return clean(f"{server.name}: {what_runs(shown(lifted(server.name, server.definition, {})))} ?")


def _write(session: Session, home: Home, definitions: dict[str, dict[str, object]]) -> Reply | None:
    """All of them into the file, and the running daemon told.

    Raises Refused when it will not have them; then the file is as it was.
    """
    before = home.path.read_bytes() if home.path.exists() else None
    try:
        add_servers(home.path, definitions)
    except BadSpec as error:
        raise Refused({"message": f"{error.source} was not changed", "data": error.data()}) from None
    if not home.running:
        return None
    reply = session.call("mcpd/reload")
    problems = objects(reply.value.get("errors"))
    if problems:
        if before is None:
            home.path.unlink()
        else:
            write_atomically(home.path, before)
        raise Refused(
            {
                "message": "mcpd refused them, so nothing was imported",
                "data": {"code": "bad_spec", "exit": 2, "problems": problems},
            }
        )
    return reply
