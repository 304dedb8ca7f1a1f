"""The secret store, and references to secrets in the configuration."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from mcpd.config.loader import load
from mcpd.config.masking import mask_definition
from mcpd.config.secret_store import (
    change_secrets,
    fetch_secret,
    read_secrets,
    secrets_path,
)
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import RemoteSpec, SecretReference, UnavailableSecret


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path / "home")}


def test_secrets_are_stored_privately_and_deleted(environ: dict[str, str]) -> None:
    """The modes are 0600 and 0700; other secrets are unchanged."""
    assert read_secrets(environ) == {}
    path = change_secrets(environ, {"A": "ä\n", "B": "2"})
    assert path == secrets_path(environ)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    change_secrets(environ, {"A": None, "C": "3", "X": None})
    assert read_secrets(environ) == {"B": "2", "C": "3"}


def test_definition_keeps_references_until_resolved(environ: dict[str, str], tmp_path: Path) -> None:
    """Reading a configuration reads no secret, and a secret's value does not change the server's identity."""
    file = tmp_path / "mcpd" / "config.json"
    file.parent.mkdir()
    definition = {
        "url": "${secret:URL:-https://x.y}",
        "headers": {"Authorization": "Bearer ${secret:TOKEN}", "B": "${secret:NO:-${secret:NOR:-b}}"},
    }
    file.write_text(json.dumps({"mcpServers": {"a": definition}}))
    spec = load(None, environ).specs["a"]
    assert spec.unresolved is not None
    change_secrets(environ, {"TOKEN": "s3cr3t-value"})
    known: dict[SecretReference, str | UnavailableSecret] = {}
    while (filled := spec.unresolved.resolve(known)).unresolved:
        known |= {reference: fetch_secret(reference, environ) for reference in filled.unresolved}
    made = filled.spec
    assert isinstance(made, RemoteSpec)
    assert (made.url, made.headers) == ("https://x.y", {"Authorization": "Bearer s3cr3t-value", "B": "b"})
    assert "s3cr3t-value" in filled.secrets
    assert mask_definition(load(None, environ).definitions["a"])["headers"] == {
        "Authorization": "Bearer ${secret:TOKEN}",
        "B": "${secret:NO:-${secret:NOR:-b}}",
    }
    assert spec == load(None, environ).specs["a"]


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("{", 0o600, "not valid JSON"),
        ("[]", 0o600, "must contain an object"),
        ('{"A": 1}', 0o600, "is not a string"),
        ('{"A": "1"}', 0o644, "other users can access"),
        ('{"B": "1"}', 0o600, "there is no secret A"),
    ],
)
def test_store_errors_are_reported_for_the_secret(
    environ: dict[str, str], text: str, mode: int, said: str
) -> None:
    """The configuration that refers to the secret stays valid."""
    path = secrets_path(environ)
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(mode)
    found = fetch_secret(SecretReference("secret", ("A",)), environ)
    assert isinstance(found, UnavailableSecret)
    assert said in found.message
    path.with_name("config.json").write_text(
        '{"mcpServers": {"a": {"command": "x", "env": {"A": "${secret:A}"}}}}'
    )
    assert load(None, environ).specs.keys() == {"a"}


def test_file_and_credential_lose_the_final_line_break(tmp_path: Path) -> None:
    """Only a text file of a bounded size is accepted."""
    (tmp_path / "one").write_text(" a b \r\n\n")
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "binary").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "fifo")
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert fetch_secret(SecretReference("file", (str(tmp_path / "one"),)), {}) == " a b "
    assert fetch_secret(SecretReference("credential", ("one",)), environ) == " a b "
    for name, said in {
        "large": "more than",
        "binary": "UTF-8",
        "fifo": "not a regular file",
        "none": "does not exist",
    }.items():
        for found in (
            fetch_secret(SecretReference("file", (str(tmp_path / name),)), {}),
            fetch_secret(SecretReference("credential", (name,)), environ),
        ):
            assert isinstance(found, UnavailableSecret)
            assert said in found.message
            assert found.missing is (name == "none")
    assert isinstance(fetch_secret(SecretReference("credential", ("one",)), {}), UnavailableSecret)


def test_secret_is_refused_in_fields_not_passed_to_the_server(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """In other fields, it would have to be read with the configuration."""
    file = tmp_path / "mcpd" / "config.json"
    file.parent.mkdir()
    for whole in (
        {"mcpServers": {"a": {"command": "x", "description": "${secret:A}"}}},
        {"mcpServers": {"a": {"command": "x", "cwd": "${file:A}"}}},
        {"settings": {"http": "${secret:A}"}},
    ):
        file.write_text(json.dumps(whole))
        with pytest.raises(BadSpec, match="cannot be used here"):
            load(None, environ)


def test_commands_require_a_private_file_that_allows_them(environ: dict[str, str], tmp_path: Path) -> None:
    """A configuration from a variable has no settings, and other users could change a writable file."""
    file = tmp_path / "mcpd" / "config.json"
    file.parent.mkdir()
    servers = {"a": {"command": "x", "env": {"A": "${cmd:id -u}"}}}
    file.write_text(json.dumps({"mcpServers": servers}))
    with pytest.raises(BadSpec, match="your settings do not allow"):
        load(None, environ)
    with pytest.raises(BadSpec, match="your settings do not allow"):
        load(None, {**environ, "MCPD_SERVERS": json.dumps([{"name": "a", **servers["a"]}])})
    file.write_text(json.dumps({"mcpServers": servers, "settings": {"allowCommands": True}}))
    file.chmod(0o600)
    assert load(None, environ).specs["a"].unresolved is not None
    file.chmod(0o622)
    with pytest.raises(BadSpec, match="other users can write"):
        load(None, environ)


def test_concurrent_writers_lose_nothing(environ: dict[str, str]) -> None:
    """Each writer reads the store before it writes."""
    threads = [
        threading.Thread(target=change_secrets, args=[environ, {f"S{n}": str(n)}], daemon=True)
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(read_secrets(environ)) == 8


@pytest.mark.parametrize("name", ["", "a b", "9", "a-b", "$"])
def test_invalid_secret_name_is_refused(environ: dict[str, str], name: str) -> None:
    """The store is unchanged."""
    with pytest.raises(BadSpec, match="invalid secret name"):
        change_secrets(environ, {"OK": "1", name: "x"})
    assert read_secrets(environ) == {}
