"""Adds, removes or changes one entry of a JSON, TOML or YAML file in place: ours or another program's.

The result of every change is parsed again, and a change that would alter anything else is refused.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, cast

import attrs

from mcpd.config.loader import MAX_FILE_SIZE, decode_utf8, format_of, parse_text
from mcpd.files.atomic import write_atomically
from mcpd.files.regular import UnusableFile, read_regular_file
from mcpd.model.errors import BadSpec, CannotWrite

KeyPath = tuple[str, ...]
"""The keys that lead to a value, from the top level."""

MAX_FOREIGN_SIZE = 64 * 1024 * 1024
"""Bytes. Some editors store their history in the same file as their settings."""

_BOM = b"\xef\xbb\xbf"


@attrs.frozen
class Document:
    """The text of a file and its parsed value; immutable. Changes return a new document.

    They raise BadSpec if the file cannot be changed safely.
    """

    source: str
    kind: str
    text: str = attrs.field(repr=False)
    value: dict[str, object] = attrs.field(repr=False)
    bom: bytes
    foreign: bool

    @property
    def data(self) -> bytes:
        return self.bom + self.text.encode()

    def value_at(self, key_path: KeyPath) -> object:
        """Return the value at `key_path`, or None."""
        value: object = self.value
        for key in key_path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def entry_names(self, key_path: KeyPath) -> list[str]:
        """Return the names of the entries of the object or list at `key_path`, in order."""
        value = self.value_at(key_path)
        if isinstance(value, list):
            return [str(entry.get("name")) for entry in value if isinstance(entry, dict)]
        return [str(name) for name in value] if isinstance(value, dict) else []

    def with_entry(
        self, key_path: KeyPath, name: str, entry: Mapping[str, object], *, listed: bool = False
    ) -> Document:
        """Append an entry at `key_path`. If nothing is there, create an object, or a list if `listed`."""
        value = self.value_at(key_path)
        listed = isinstance(value, list) or (value is None and listed)
        wanted, inner = self._copy_to(key_path[:-1])
        if listed:
            inner[key_path[-1]] = [*(value if isinstance(value, list) else []), {"name": name, **entry}]
        else:
            inner[key_path[-1]] = {**(value if isinstance(value, dict) else {}), name: dict(entry)}
        if value is None or isinstance(value, (dict, list)):
            return self._apply(
                wanted, key_path, lambda editor: editor.add(self.text, key_path, listed, name, entry)
            )
        raise self._unsafe_error()

    def without_entry(self, key_path: KeyPath, name: str) -> Document:
        """Remove the entry of this name, which must exist. With an empty path, it is at the top level."""
        if not key_path:
            wanted = {key: value for key, value in self.value.items() if key != name}
            return self._apply(wanted, (name,), lambda editor: editor.remove(self.text, (), False, name))
        wanted, inner = self._copy_to(key_path[:-1])
        value = inner[key_path[-1]]
        listed = isinstance(value, list)
        if isinstance(value, list):
            inner[key_path[-1]] = [
                entry for entry in value if not isinstance(entry, dict) or entry.get("name") != name
            ]
        elif isinstance(value, dict):
            inner[key_path[-1]] = {key: entry for key, entry in value.items() if key != name}
        return self._apply(wanted, key_path, lambda editor: editor.remove(self.text, key_path, listed, name))

    def with_value(self, path: KeyPath, value: object) -> Document:
        """Set the member at `path` to `value` (plain data). Missing parent objects are created."""
        wanted, inner = self._copy_to(path[:-1])
        inner[path[-1]] = value
        return self._apply(wanted, path, lambda editor: editor.change(self.text, path, value))

    def with_item(self, key_path: KeyPath, index: int, item: Mapping[str, object]) -> Document:
        """Insert an object into the list at `key_path`, or append it if `index` is the list's length.

        If nothing is there, creates the list.
        """
        value = self.value_at(key_path)
        if value in (None, []):
            return self.with_value(key_path, [dict(item)])
        if not isinstance(value, list) or not 0 <= index <= len(value):
            raise self._unsafe_error()
        wanted, inner = self._copy_to(key_path[:-1])
        inner[key_path[-1]] = [*value[:index], dict(item), *value[index:]]
        return self._apply(wanted, key_path, lambda editor: editor.insert(self.text, key_path, index, item))

    def _copy_to(self, key_path: KeyPath) -> tuple[dict[str, object], dict[str, object]]:
        """Return a copy of the value, and the object at `key_path` in it. Only the path is copied."""
        whole = dict(self.value)
        inner = whole
        for key in key_path:
            below = inner.get(key, {})
            if not isinstance(below, dict):
                raise self._unsafe_error()
            copied = dict(below)
            inner[key] = copied
            inner = copied
        return whole, inner

    def _apply(
        self, wanted: dict[str, object], key_path: KeyPath, way: Callable[[FormatEditor], str | None]
    ) -> Document:
        """Edit the text in place, or let the format's library rewrite it, and verify the result."""
        text = way(editor_for(self.kind))
        if text is None or not self._parses_to(text, wanted, key_path):
            rewrite = {"TOML": _rewrite_toml, "YAML": _rewrite_yaml}.get(self.kind)
            text = rewrite(self.text, wanted, key_path) if rewrite is not None else None
        if text is None or not self._parses_to(text, wanted, key_path):
            raise self._unsafe_error()
        return attrs.evolve(self, text=text, value=wanted)

    def _parses_to(self, text: str, wanted: dict[str, object], key_path: KeyPath) -> bool:
        try:
            found = parse_text(text, self.kind, self.source, foreign=self.foreign)
        except BadSpec:
            return False
        return isinstance(found, dict) and _without_empty(found, key_path) == _without_empty(wanted, key_path)

    def _unsafe_error(self) -> BadSpec:
        message = "mcpd cannot edit this file without risking other content, so it was not changed"
        return BadSpec.single(message, "edit the file by hand", self.source)


def read_document(path: Path, *, foreign: bool = False) -> Document:
    """Read a file; a missing one is an empty document. `foreign`: see `parse_text`; larger files are allowed.

    Raises BadSpec if the file cannot be read or parsed, or does not contain an object.
    """
    try:
        data = read_regular_file(path, MAX_FOREIGN_SIZE if foreign else MAX_FILE_SIZE)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise read_error(path, error) from None
    return parse_document(data, path, foreign=foreign)


def parse_document(data: bytes, path: Path, *, foreign: bool = False) -> Document:
    """Like `read_document`, for the content of a file that need not exist."""
    source = str(path)
    kind = format_of(path, source)
    text = decode_utf8(data, source, MAX_FOREIGN_SIZE if foreign else MAX_FILE_SIZE)
    value = parse_text(text, kind, source, foreign=foreign)
    if not isinstance(value, dict):
        message = "the file does not contain an object, so it was not changed"
        raise BadSpec.single(message, 'write {"mcpServers": {}}', source)
    return Document(source, kind, text, value, _BOM if data.startswith(_BOM) else b"", foreign)


def write_document(path: Path, document: Document) -> None:
    """Replace the file atomically; its mode and owner stay. Raises CannotWrite."""
    check_writable(path)
    try:
        write_atomically(path, document.data)
    except OSError as error:
        raise write_error(path, error) from None


def check_writable(path: Path) -> None:
    """Raise CannotWrite for a read-only file: replacing it would work, but would ignore its mode."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # it will be created, or writing it reports the error
    if not mode & 0o222:
        raise CannotWrite(f"cannot write {path}: it is read-only", f"chmod u+w {path}")


def read_error(path: Path, error: OSError) -> BadSpec:
    """Return the error for a file that cannot be read."""
    return BadSpec.single(f"cannot read {path}: {error.strerror or error}", _fix_for(error), path)


def write_error(path: Path, error: OSError, verb: str = "write") -> CannotWrite:
    """Return the error for a file that cannot be written, or removed."""
    return CannotWrite(f"cannot {verb} {path}: {error.strerror or error}", _fix_for(error))


def _fix_for(error: OSError) -> str:
    if isinstance(error, UnusableFile):
        return "replace it by a regular file"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "free space on its disk" if full else "check the permissions of the file and its directory"


class FormatEditor(Protocol):
    """The functions of each format's module. They return None if they cannot edit the text in place."""

    def add(
        self, text: str, key_path: KeyPath, listed: bool, name: str, definition: Mapping[str, object], /
    ) -> str | None: ...

    def remove(self, text: str, key_path: KeyPath, listed: bool, name: str, /) -> str | None: ...

    def change(self, text: str, path: KeyPath, value: object, /) -> str | None: ...

    def insert(self, text: str, key_path: KeyPath, index: int, item: Mapping[str, object], /) -> str | None:
        """Insert an object into the list at `key_path`, before an element and the comments above that, or
        after the last one."""


def editor_for(kind: str) -> FormatEditor:
    """Return the module for a format. Imported on use, because two of them need large libraries."""
    match kind:
        case "JSON":
            from mcpd.config.in_place_edits import edit_json

            return edit_json
        case "TOML":
            from mcpd.config.in_place_edits import edit_toml

            return edit_toml
        case _:
            from mcpd.config.in_place_edits import edit_yaml

            return edit_yaml


def _without_empty(document: Mapping[str, object], key_path: KeyPath) -> dict[str, object]:
    """Drop empty containers along `key_path`: a TOML table disappears with its last entry."""
    bare = dict(document)
    if not key_path:
        return bare
    below = bare.get(key_path[0])
    if isinstance(below, dict):
        below = _without_empty(below, key_path[1:])
        bare[key_path[0]] = below
    if key_path[0] in bare and below in (None, {}, []):
        del bare[key_path[0]]
    return bare


def _rewrite_toml(text: str, wanted: dict[str, object], key_path: KeyPath) -> str | None:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        _update_at(document, wanted, key_path)
        return tomlkit.dumps(document)
    except (TOMLKitError, ValueError):
        return None


def _rewrite_yaml(text: str, wanted: dict[str, object], key_path: KeyPath) -> str | None:
    import io

    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    rewriter = YAML(typ="rt")
    rewriter.preserve_quotes = True
    rewriter.width = 1 << 20
    out = io.StringIO()
    try:
        document = rewriter.load(text)
        if document is None:
            document = {}
        _update_at(document, wanted, key_path)
        rewriter.dump(document, out)
    except (YAMLError, ValueError):
        return None
    return out.getvalue()


def _update_at(old: dict[str, object], new: dict[str, object], key_path: KeyPath) -> None:
    """Update the library's document at `key_path` only, so that it keeps the formatting of the rest."""
    for key in key_path[:-1]:
        old = cast("dict[str, object]", old.setdefault(key, {}))
        new = cast("dict[str, object]", new[key])
    here, there = old.get(key_path[-1]), new[key_path[-1]]
    if isinstance(here, dict) and isinstance(there, dict):
        for name in here.keys() - there.keys():
            del here[name]
        here.update({name: value for name, value in there.items() if here.get(name) != value})
    elif isinstance(here, list) and isinstance(there, list):
        for index in reversed([i for i, entry in enumerate(here) if entry not in there]):
            del here[index]
        here.extend(there[len(here) :])
    else:
        old[key_path[-1]] = there
