"""One configuration file, ours or another program's, with an entry put in, taken out or changed in place.

Every change is checked by reading its outcome: one that would alter anything else is not made.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import attrs

from mcpd.config.loader import MAX_FILE_SIZE, decode_utf8, format_of, parse_text
from mcpd.model.errors import BadSpec, Problem
from mcpd.support.atomic_files import write_atomically

KeyPath = tuple[str, ...]
"""The keys that lead to an object or list of entries."""

MAX_FOREIGN_SIZE = 64 * 1024 * 1024
"""Bytes. Some editors keep their history beside their settings."""

_BOM = b"\xef\xbb\xbf"


@attrs.frozen
class Document:
    """The text of a file and what it means. A change answers another one.

    The changes raise BadSpec when the file is written in a way that cannot be changed safely.
    """

    source: str
    kind: str
    text: str = attrs.field(repr=False)
    value: dict[str, object] = attrs.field(repr=False)
    bom: bytes = b""
    foreign: bool = False

    @property
    def data(self) -> bytes:
        return self.bom + self.text.encode()

    def value_at(self, slot: KeyPath) -> object:
        """What is at `slot`, None when nothing is."""
        value: object = self.value
        for key in slot:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def entry_names(self, slot: KeyPath) -> list[str]:
        """The names of the entries at `slot`, in order."""
        value = self.value_at(slot)
        if isinstance(value, list):
            return [str(entry.get("name")) for entry in value if isinstance(entry, dict)]
        return [str(name) for name in value] if isinstance(value, dict) else []

    def with_entry(
        self, slot: KeyPath, name: str, entry: Mapping[str, object], *, listed: bool = False
    ) -> Document:
        """With one more entry, last at `slot`, which is made if it is missing, as a list when `listed`."""
        value = self.value_at(slot)
        listed = isinstance(value, list) or (value is None and listed)
        wanted, inner = self._copy_to(slot[:-1])
        if listed:
            inner[slot[-1]] = [*(value if isinstance(value, list) else []), {"name": name, **entry}]
        else:
            inner[slot[-1]] = {**(value if isinstance(value, dict) else {}), name: dict(entry)}
        if value is None or isinstance(value, (dict, list)):
            return self._apply(wanted, slot, lambda editor: editor.add(self.text, slot, listed, name, entry))
        raise self._unsafe_error()

    def without_entry(self, slot: KeyPath, name: str) -> Document:
        """Without the entry of this name, which is there."""
        wanted, inner = self._copy_to(slot[:-1])
        value = inner[slot[-1]]
        listed = isinstance(value, list)
        if isinstance(value, list):
            inner[slot[-1]] = [
                entry for entry in value if not isinstance(entry, dict) or entry.get("name") != name
            ]
        elif isinstance(value, dict):
            inner[slot[-1]] = {key: entry for key, entry in value.items() if key != name}
        return self._apply(wanted, slot, lambda editor: editor.remove(self.text, slot, listed, name))

    def with_value(self, path: KeyPath, value: object) -> Document:
        """With the member at `path` being `value`, which is plain data; the objects before it are made."""
        wanted, inner = self._copy_to(path[:-1])
        inner[path[-1]] = value
        return self._apply(wanted, path, lambda editor: editor.change(self.text, path, value))

    def _copy_to(self, slot: KeyPath) -> tuple[dict[str, object], dict[str, object]]:
        """The whole, and the object in it at `slot`, made where it is missing; only these are copied."""
        whole = dict(self.value)
        inner = whole
        for key in slot:
            below = inner.get(key, {})
            if not isinstance(below, dict):
                raise self._unsafe_error()
            copied = dict(below)
            inner[key] = copied
            inner = copied
        return whole, inner

    def _apply(
        self, wanted: dict[str, object], slot: KeyPath, way: Callable[[FormatEditor], str | None]
    ) -> Document:
        """The text that means what is wanted: changed in place, else by the format's own library."""
        text = way(editor_for(self.kind))
        if text is None or not self._parses_to(text, wanted, slot):
            text = self._rewrite(wanted, slot)
        if text is None or not self._parses_to(text, wanted, slot):
            raise self._unsafe_error()
        return attrs.evolve(self, text=text, value=wanted)

    def _parses_to(self, text: str, wanted: dict[str, object], slot: KeyPath) -> bool:
        try:
            found = parse_text(text, self.kind, self.source, foreign=self.foreign)
        except BadSpec:
            return False
        return isinstance(found, dict) and _without_empty(found, slot) == _without_empty(wanted, slot)

    def _rewrite(self, wanted: dict[str, object], slot: KeyPath) -> str | None:
        """The whole text, written by the format's own library; None where that cannot do it either."""
        match self.kind:
            case "TOML":
                return _rewrite_toml(self.text, wanted, slot)
            case "YAML":
                return _rewrite_yaml(self.text, wanted, slot)
            case _:
                return None

    def _unsafe_error(self) -> BadSpec:
        message = "this file is written in a way that cannot be changed safely, so it was left alone"
        return BadSpec([Problem("$", message, "change it with an editor")], self.source)


def read_document(path: Path, *, foreign: bool = False) -> Document:
    """The file as it is; a missing one is empty. `foreign`: as for `formats.parse`, and of any length.

    Raises BadSpec when it cannot be read or parsed, or does not hold an object.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise file_error("read", path, error) from None
    return parse_document(data, path, foreign=foreign)


def parse_document(data: bytes, path: Path, *, foreign: bool = False) -> Document:
    """The same for bytes that are, or could be, at `path`."""
    source = str(path)
    kind = format_of(path, source)
    text = decode_utf8(data, source, MAX_FOREIGN_SIZE if foreign else MAX_FILE_SIZE)
    value = parse_text(text, kind, source, foreign=foreign)
    if not isinstance(value, dict):
        message = "the file does not hold an object, so it was left alone"
        raise BadSpec([Problem("$", message, 'write {"mcpServers": {}}')], source)
    return Document(source, kind, text, value, _BOM if data.startswith(_BOM) else b"", foreign)


def write_document(path: Path, document: Document) -> None:
    """Put it in the place of the file, atomically; its mode and owner stay. Raises BadSpec."""
    check_writable(path)
    try:
        write_atomically(path, document.data)
    except OSError as error:
        raise file_error("write", path, error) from None


def check_writable(path: Path) -> None:
    """Raises BadSpec for a file that is read-only: replacing it would work, and is not what its mode says."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # it is to be made, or cannot be, which its writing will tell
    if not mode & 0o222:
        raise BadSpec([Problem("$", f"{path} is read-only", f"chmod u+w {path}")], str(path))


def file_error(verb: str, path: Path, error: OSError) -> BadSpec:
    """The complaint about a file that the system would not let us read or write."""
    message = f"cannot {verb} {path}: {error.strerror or error}"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = "make room on its disk" if full else "check the permissions of the file and its directory"
    return BadSpec([Problem("$", message, fix)], str(path))


class FormatEditor(Protocol):
    """The three ways of changing a text in place; None: not possible in place. Each format has a module."""

    def add(
        self, text: str, slot: KeyPath, listed: bool, name: str, definition: Mapping[str, object], /
    ) -> str | None: ...

    def remove(self, text: str, slot: KeyPath, listed: bool, name: str, /) -> str | None: ...

    def change(self, text: str, path: KeyPath, value: object, /) -> str | None: ...


def editor_for(kind: str) -> FormatEditor:
    """Imported when used: the libraries behind two of them are large."""
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


def _without_empty(document: Mapping[str, object], slot: KeyPath) -> dict[str, object]:
    """The document without what is empty at the end of `slot`: a table that lost its last entry is gone."""
    bare = dict(document)
    if not slot:
        return bare
    below = bare.get(slot[0])
    if isinstance(below, dict):
        below = _without_empty(below, slot[1:])
        bare[slot[0]] = below
    if slot[0] in bare and below in (None, {}, []):
        del bare[slot[0]]
    return bare


def _rewrite_toml(text: str, wanted: dict[str, object], slot: KeyPath) -> str | None:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        _update_at(document, wanted, slot)
        return tomlkit.dumps(document)
    except (TOMLKitError, ValueError):
        return None


def _rewrite_yaml(text: str, wanted: dict[str, object], slot: KeyPath) -> str | None:
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
        _update_at(document, wanted, slot)
        rewriter.dump(document, out)
    except (YAMLError, ValueError):
        return None
    return out.getvalue()


def _update_at(old: dict[str, object], new: dict[str, object], slot: KeyPath) -> None:
    """Change the library's document at `slot` only, so that it keeps what it knows of the rest."""
    for key in slot[:-1]:
        below, wanted = old.setdefault(key, {}), new[key]
        assert isinstance(below, dict)
        assert isinstance(wanted, dict)
        old, new = below, wanted
    here, there = old.get(slot[-1]), new[slot[-1]]
    if isinstance(here, dict) and isinstance(there, dict):
        for name in [name for name in here if name not in there]:
            del here[name]
        for name in [name for name in there if name not in here or here[name] != there[name]]:
            here[name] = there[name]
    elif isinstance(here, list) and isinstance(there, list):
        for index in reversed([i for i, entry in enumerate(here) if entry not in there]):
            del here[index]
        here.extend(there[len(here) :])
    else:
        old[slot[-1]] = there


def append_block(text: str, block: str) -> str:
    """`block` at the end, one blank line apart; a file without a last line break stays without one."""
    eol = "\r\n" if "\r\n" in text else "\n"
    block = block.strip("\n").replace("\n", eol)
    if not text:
        return block + eol
    return f"{text}{eol}{block}{eol}" if text.endswith("\n") else f"{text}{eol}{eol}{block}"


def has_content(line: str) -> bool:
    """Whether something stands on the line that is no remark."""
    return bool(line.strip()) and not line.lstrip().startswith("#")
