"""Change the user's file: one server added or removed, everything else left as it was written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from mcpd.config.formats import decode, format_of, parse
from mcpd.model.errors import BadSpec, Problem
from mcpd.support.atomic import write_atomically

_BOM = b"\xef\xbb\xbf"


def add_server(path: Path, name: str, definition: Mapping[str, object], *, replace: bool = False) -> None:
    """Write the server into the file, last of all; the file and its directory are made if missing.

    Comments, order and formatting of the rest stay. The definition is written as it is: check it first.
    Raises BadSpec when the file cannot be parsed or written, or has the server already and not `replace`.
    """
    file = _open(path)
    if name in file.servers:
        if not replace:
            fix = f"remove it first: `mcpctl remove {name}`"
            raise BadSpec([Problem("$", f"server '{name}' is in {path} already", fix)], str(path))
        file = attrs.evolve(file, text=_removed(file, name), document=file.without(name))
    text = _added(file, name, definition)
    _write(path, file.bom + text.encode())


def remove_server(path: Path, name: str) -> bool:
    """Take the server out of the file. False: it was not in there, and nothing was written.

    Raises BadSpec when the file cannot be parsed or written.
    """
    file = _open(path)
    if name not in file.servers:
        return False
    _write(path, file.bom + _removed(file, name).encode())
    return True


@attrs.frozen
class _File:
    source: str
    kind: str
    text: str
    document: dict[str, object]
    bom: bytes = b""

    @property
    def slot(self) -> tuple[str, ...]:
        """Where this file keeps its servers, or would."""
        return ("mcp", "servers") if isinstance(self.document.get("mcp"), dict) else ("mcpServers",)

    @property
    def listed(self) -> bool:
        return isinstance(self._at_slot(), list)

    @property
    def servers(self) -> list[str]:
        """Their names in order."""
        value = self._at_slot()
        if isinstance(value, list):
            return [str(entry.get("name")) for entry in value if isinstance(entry, dict)]
        return [str(name) for name in value] if isinstance(value, dict) else []

    def _at_slot(self) -> object:
        value: object = self.document
        for key in self.slot:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def container(self) -> tuple[dict[str, object], str, dict[str, object]]:
        """A copy of the document, and the member of it that holds the servers."""
        document = copy.deepcopy(self.document)
        inner = document
        for key in self.slot[:-1]:
            below = inner[key]
            assert isinstance(below, dict)
            inner = below
        return document, self.slot[-1], inner

    def without(self, name: str) -> dict[str, object]:
        document, key, inner = self.container()
        value = inner[key]
        if isinstance(value, list):
            inner[key] = [entry for entry in value if entry.get("name") != name]
        elif isinstance(value, dict):
            del value[name]
        return document

    def with_(self, name: str, definition: Mapping[str, object]) -> dict[str, object]:
        document, key, inner = self.container()
        value = inner.get(key)
        if isinstance(value, list):
            value.append({"name": name, **definition})
        else:
            inner[key] = {**(value if isinstance(value, dict) else {}), name: dict(definition)}
        return document

    def says(self, text: str | None, document: dict[str, object]) -> bool:
        """Whether `text` means exactly `document`; a server object that is not there is an empty one."""
        if text is None:
            return False
        try:
            found = parse(text, self.kind, self.source)
        except BadSpec:
            return False
        return isinstance(found, dict) and _bare(found) == _bare(document)


def _bare(document: Mapping[str, object]) -> dict[str, object]:
    trimmed = {key: value for key, value in document.items() if key != "mcpServers" or value}
    mcp = trimmed.get("mcp")
    if isinstance(mcp, dict):
        trimmed["mcp"] = {key: value for key, value in mcp.items() if key != "servers" or value}
    return trimmed


def _open(path: Path) -> _File:
    source = str(path)
    kind = format_of(path, source)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise _cannot("read", path, error) from None
    text = decode(data, source)
    document = parse(text, kind, source)
    if not isinstance(document, dict):
        message = "the file does not hold an object, so it was left alone"
        raise BadSpec([Problem("$", message, 'write {"mcpServers": {}}')], source)
    return _File(source, kind, text, document, _BOM if data.startswith(_BOM) else b"")


def _added(file: _File, name: str, definition: Mapping[str, object]) -> str:
    wanted = file.with_(name, definition)
    where = (file.slot, file.listed, name, definition)
    match file.kind:
        case "JSON":
            from mcpd.config import edit_json

            return _first(file, wanted, [lambda: edit_json.add(file.text, *where)])
        case "TOML":
            from mcpd.config import edit_toml

            return _first(
                file, wanted, [lambda: edit_toml.add(file.text, *where), lambda: _toml(file, wanted)]
            )
        case _:
            from mcpd.config import edit_yaml

            return _first(
                file, wanted, [lambda: edit_yaml.add(file.text, *where), lambda: _yaml(file, wanted)]
            )


def _removed(file: _File, name: str) -> str:
    wanted = file.without(name)
    where = (file.slot, file.listed, name)
    match file.kind:
        case "JSON":
            from mcpd.config import edit_json

            return _first(file, wanted, [lambda: edit_json.remove(file.text, *where)])
        case "TOML":
            from mcpd.config import edit_toml

            index = file.servers.index(name)
            return _first(
                file,
                wanted,
                [lambda: edit_toml.remove(file.text, *where, index), lambda: _toml(file, wanted)],
            )
        case _:
            from mcpd.config import edit_yaml

            return _first(
                file, wanted, [lambda: edit_yaml.remove(file.text, *where), lambda: _yaml(file, wanted)]
            )


def _first(file: _File, wanted: dict[str, object], ways: list[Callable[[], str | None]]) -> str:
    """The first text that means what is wanted: an edit that would change anything else is not made."""
    for way in ways:
        text = way()
        if text is not None and file.says(text, wanted):
            return text
    message = "this file is written in a way that cannot be changed safely, so it was left alone"
    raise BadSpec([Problem("$", message, "change it with an editor, then `mcpctl reload`")], file.source)


def _toml(file: _File, wanted: dict[str, object]) -> str:
    import tomlkit

    document = tomlkit.parse(file.text)
    _follow(document, wanted, file.slot)
    return tomlkit.dumps(document)


def _yaml(file: _File, wanted: dict[str, object]) -> str:
    import io

    from ruamel.yaml import YAML

    rewriter = YAML(typ="rt")
    rewriter.preserve_quotes = True
    rewriter.width = 1 << 20
    document = rewriter.load(file.text)
    if document is None:
        document = {}
    _follow(document, wanted, file.slot)
    out = io.StringIO()
    rewriter.dump(document, out)
    return out.getvalue()


def _follow(old: dict[str, object], new: dict[str, object], slot: tuple[str, ...]) -> None:
    """Change the library's document at `slot` only, so that it keeps what it knows of the rest."""
    for key in slot[:-1]:
        below, wanted = old[key], new[key]
        assert isinstance(below, dict)
        assert isinstance(wanted, dict)
        old, new = below, wanted
    here, there = old.get(slot[-1]), new[slot[-1]]
    if isinstance(here, dict) and isinstance(there, dict):
        for name in [name for name in here if name not in there]:
            del here[name]
        for name in [name for name in there if name not in here]:
            here[name] = there[name]
    elif isinstance(here, list) and isinstance(there, list):
        for index in reversed([i for i, entry in enumerate(here) if entry not in there]):
            del here[index]
        here.extend(there[len(here) :])
    else:
        old[slot[-1]] = there


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise _cannot("write", path, error) from None


def _cannot(verb: str, path: Path, error: OSError) -> BadSpec:
    message = f"cannot {verb} {path}: {error.strerror or error}"
    return BadSpec([Problem("$", message, "check the permissions of the file and its directory")], str(path))
