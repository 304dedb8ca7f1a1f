"""The store of secrets, and references to it in the configuration."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from mcpd.config.files import load
from mcpd.config.masking import masked
from mcpd.config.secrets import change_secrets, read_secrets, secrets_path
from mcpd.model.errors import BadSpec


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path / "home")}


def test_secrets_are_stored_for_the_user_alone_and_forgotten(environ: dict[str, str]) -> None:
    """0600 in 0700; what was not named stays."""
    assert read_secrets(environ) == {}
    path = change_secrets(environ, {"A": "ä\n", "B": "2"})
    assert path == secrets_path(environ)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    change_secrets(environ, {"A": None, "C": "3", "X": None})
    assert read_secrets(environ) == {"B": "2", "C": "3"}


def test_a_definition_refers_to_a_secret_by_name(environ: dict[str, str], tmp_path: Path) -> None:
    """The value reaches the server, and is masked wherever something is shown; the name is not."""
    change_secrets(environ, {"TOKEN": "s3cr3t-value"})
    file = tmp_path / "mcpd" / "config.json"
    definition = {
        "url": "https://x.y",
        "headers": {"Authorization": "Bearer ${secret:TOKEN}", "B": "${secret:NO:-b}"},
    }
    file.write_text(json.dumps({"mcpServers": {"a": definition}}))
    loaded = load(None, environ)
    headers = loaded.specs["a"].headers  # type: ignore[attr-defined]  # it has a URL, so it has these
    assert headers == {"Authorization": "Bearer s3cr3t-value", "B": "b"}
    assert "s3cr3t-value" in loaded.secrets
    assert masked(loaded.definitions["a"]) == definition


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("{", 0o600, "not valid JSON"),
        ("[]", 0o600, "must hold an object"),
        ('{"A": 1}', 0o600, "is no text"),
        ('{"A": "1"}', 0o644, "open to other users"),
        ('{"B": "1"}', 0o600, "there is no secret A"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_where_it_is_needed(
    environ: dict[str, str], text: str, mode: int, said: str
) -> None:
    """A configuration without references does not care."""
    path = secrets_path(environ)
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(mode)
    file = path.with_name("config.json")
    file.write_text('{"mcpServers": {"a": {"command": "x", "env": {"A": "${secret:A}"}}}}')
    with pytest.raises(BadSpec, match=said):
        load(None, environ)
    file.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    assert load(None, environ).specs.keys() == {"a"}


def test_two_writers_lose_nothing(environ: dict[str, str]) -> None:
    """Each reads before it writes."""
    threads = [threading.Thread(target=change_secrets, args=[environ, {f"S{n}": str(n)}]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(read_secrets(environ)) == 8


@pytest.mark.parametrize("name", ["", "a b", "9", "a-b", "$"])
def test_a_name_that_could_not_be_referred_to_is_refused(environ: dict[str, str], name: str) -> None:
    """Nothing is written then."""
    with pytest.raises(BadSpec, match="no name of a secret"):
        change_secrets(environ, {"OK": "1", name: "x"})
    assert read_secrets(environ) == {}
