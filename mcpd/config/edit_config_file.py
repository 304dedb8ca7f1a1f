"""Adds, changes and removes servers in the user's configuration file. Everything else stays as written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcpd.config.in_place_edits.document import Document, KeyPath, read_document, write_document
from mcpd.model.errors import BadSpec


def add_server(path: Path, name: str, definition: Mapping[str, object]) -> None:
    """Append the server to the file, or replace the one with this name.

    The file and its directory are created if missing. Comments, order and formatting of the rest stay.
    The definition is not checked. Raises BadSpec if the file cannot be parsed, and CannotWrite.
    """
    document = read_document(path)
    key_path = _servers_path(document)
    if name not in document.entry_names(key_path):
        document = document.with_entry(key_path, name, definition)
    else:
        document = _change_entry(document, (*key_path, name), definition)
    write_document(path, document)


def put_servers(
    path: Path,
    definitions: Mapping[str, Mapping[str, object]],
    rules: Sequence[tuple[int, Mapping[str, object]]] = (),
    rules_before: object = None,
) -> None:
    """Add several servers, and insert rules before an index, at once: either all of them or none.

    Raises what `add_server` does, and BadSpec if one of the servers exists, or if the rules are not what they
    were before.
    """
    document = read_document(path)
    for name, definition in definitions.items():
        key_path = _servers_path(document)
        if name in document.entry_names(key_path):
            message = f"server '{name}' already exists in {path}"
            raise BadSpec.single(message, f"remove it first: `mcpctl remove {name}`", path)
        document = document.with_entry(key_path, name, definition)
    policies: KeyPath = (*_settings_path(document), "policies")
    if rules and document.value_at(policies) != rules_before:
        message = f"the rules in {path} have changed in the meantime"
        raise BadSpec.single(message, "review the file and try again", path)
    for index, rule in rules:
        document = document.with_item(policies, index, rule)
    write_document(path, document)


def put_profile(path: Path, name: str, profile: Mapping[str, object]) -> None:
    """Add a profile, or replace the one with this name. Raises what `add_server` does."""
    document = read_document(path)
    write_document(path, document.with_value((*_settings_path(document), "profiles", name), profile))


def put_variable(path: Path, name: str, value: str) -> None:
    """Add a variable to the `env` of all servers, or replace it. Raises what `add_server` does."""
    document = read_document(path)
    write_document(path, document.with_value((*_settings_path(document), "env", name), value))


def remove_profile(path: Path, name: str, profile: Mapping[str, object]) -> bool:
    """Remove a profile, and the objects that contained nothing else. Return False, and write nothing, if it
    is not `profile`, or if another setting may refer to it.

    Raises BadSpec if the file cannot be parsed, and CannotWrite.
    """
    document = read_document(path)
    settings = _settings_path(document)
    profiles: KeyPath = (*settings, "profiles")
    if document.value_at((*profiles, name)) != profile:
        return False
    document = document.without_entry(profiles, name)
    left = document.value_at(settings)
    others = dict(left) if isinstance(left, dict) else {}
    if isinstance(rules := others.get("policies"), list):  # a client may have the name of the profile
        others["policies"] = [each.get("profiles") for each in rules if isinstance(each, dict)]
    if f'"{name}"' in json.dumps(others, default=str):
        return False
    if not document.value_at(profiles) and "profiles" in document.entry_names(settings):
        document = document.without_entry(settings, "profiles")
    if not document.value_at(settings) and document.kind == "JSON" and settings[-1] in document.value:
        document = document.without_entry((), settings[-1])
    write_document(path, document)
    return True


def insert_rule(path: Path, before: int, rule: Mapping[str, object], expected: object) -> None:
    """Insert a rule before the one with the index `before`.

    Raises what `add_server` does, and BadSpec if the rules in the file are not the `expected` ones.
    """
    document = read_document(path)
    key_path: KeyPath = (*_settings_path(document), "policies")
    if document.value_at(key_path) != expected:
        message = f"the rules in {path} have changed, and are not in force yet"
        raise BadSpec.single(message, "run `mcpctl config reload` and try again", path)
    try:
        document = document.with_item(key_path, before, rule)
    except BadSpec as error:
        place = ".".join(("$", *key_path)) + f"[{before}]"
        fix = f"write this yourself before the rule at {place}: {json.dumps(rule, ensure_ascii=False)}"
        raise BadSpec.single(error.problems[0].message, fix, path) from None
    write_document(path, document)


def remove_server(path: Path, name: str) -> bool:
    """Remove the server from the file. Return False, and write nothing, if the file does not contain it.

    Raises BadSpec if the file cannot be parsed, and CannotWrite.
    """
    document = read_document(path)
    key_path = _servers_path(document)
    if name not in document.entry_names(key_path):
        return False
    write_document(path, document.without_entry(key_path, name))
    return True


def _change_entry(document: Document, key_path: KeyPath, definition: Mapping[str, object]) -> Document:
    """Set the entry at `key_path`, leaving equal members untouched."""
    current = document.value_at(key_path)
    if not isinstance(current, dict):
        return document.with_value(key_path, definition)
    for key in [key for key in current if key not in definition]:
        document = document.without_entry(key_path, key)
    for key, value in definition.items():
        if key not in current or current[key] != value:
            document = document.with_value((*key_path, key), value)
    return document


def _servers_path(document: Document) -> KeyPath:
    """Return the key path of the servers in this document."""
    if isinstance(document.value.get("services"), dict):
        return ("services", "mcp")
    return ("mcp", "servers") if isinstance(document.value.get("mcp"), dict) else ("mcpServers",)


def _settings_path(document: Document) -> KeyPath:
    """Return the key path of the settings in this document."""
    return ("mcp", "globalSettings") if isinstance(document.value.get("mcp"), dict) else ("settings",)
