"""Which servers a daemon starts with when its configuration has errors."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest

from mcpd.config.check_document import LoadedConfig
from mcpd.config.load_at_start import load_at_start, save_last_valid
from mcpd.config.loader import load
from mcpd.model.errors import BadSpec
from mcpd.model.server_spec import InvalidSpec, StdioSpec

GOOD = {"command": "good"}
BROKEN = {"comand": "typo"}


@attrs.frozen
class Place:
    """A configuration file, and the state directory of its daemon."""

    home: Path
    environ: dict[str, str]

    @property
    def file(self) -> Path:
        return self.home / "config.json"

    @property
    def state(self) -> Path:
        return self.home / "state"

    def write(self, text: object) -> None:
        self.file.write_text(text if isinstance(text, str) else json.dumps(text))

    def write_servers(self, **servers: object) -> None:
        self.write({"mcpServers": servers})

    def start(self) -> LoadedConfig:
        """Load the configuration as a daemon does, which also stores a valid one."""
        loaded = load_at_start(self.file, self.environ, self.state)
        save_last_valid(loaded, self.state)
        return loaded


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, {"HOME": str(tmp_path)})


def commands(loaded: LoadedConfig) -> dict[str, str]:
    """Return the command of each server; `!` and the messages for an invalid one."""
    return {name: command(spec) for name, spec in loaded.specs.items()}


def command(spec: Any) -> str:
    if isinstance(spec, InvalidSpec):
        return "! " + "; ".join(problem.message for problem in spec.problems)
    assert isinstance(spec, StdioSpec)
    return spec.command


def test_entry_with_an_error_does_not_affect_the_others(place: Place) -> None:
    """It is listed in its place, with its own errors only."""
    place.write_servers(a=GOOD, b=BROKEN, c={"command": 5}, d=GOOD)
    loaded = place.start()
    assert list(loaded.specs) == list(loaded.definitions) == ["a", "b", "c", "d"]
    assert commands(loaded)["a"] == commands(loaded)["d"] == "good"
    assert "unknown field 'comand'" in commands(loaded)["b"]
    assert "must be a string" in commands(loaded)["c"]
    with pytest.raises(BadSpec) as refused:
        load(place.file, place.environ)
    assert loaded.problems == tuple(refused.value.problems)


@pytest.mark.parametrize(
    "text",
    [
        '{"mcpServers": {"a": {"command": "new"},,',
        '{"mcpServer": {"a": {"command": "new"}}}',
        '{"mcpServers": []',
        b"\xff".decode("latin1"),
        "[]",
    ],
)
def test_unusable_document_is_replaced_by_the_last_valid_one(place: Place, text: str) -> None:
    place.write({"mcpServers": {"a": GOOD, "b": GOOD}, "settings": {"maxStarts": 3}})
    place.start()
    place.file.write_bytes(text.encode("latin1"))
    loaded = place.start()
    assert commands(loaded) == {"a": "good", "b": "good"}
    assert loaded.settings.max_starts == 3
    assert loaded.problems
    assert loaded.path == place.file


def test_unusable_document_is_refused_without_a_last_valid_one(place: Place) -> None:
    place.write('{"mcpServers": ')
    with pytest.raises(BadSpec, match="not valid JSON"):
        place.start()


def test_last_valid_content_of_another_file_is_not_used(place: Place) -> None:
    place.write_servers(a=GOOD)
    place.start()
    other = place.home / "other.json"
    other.write_text("{")
    with pytest.raises(BadSpec, match="not valid JSON"):
        load_at_start(other, place.environ, place.state)


def test_missing_file_is_refused(place: Place) -> None:
    """It was probably named by mistake, or deleted on purpose."""
    place.write_servers(a=GOOD)
    place.start()
    place.file.unlink()
    with pytest.raises(BadSpec, match="does not exist"):
        place.start()


def test_file_that_others_can_write_does_not_allow_commands(place: Place) -> None:
    """Tolerating errors must not run what a strict check refuses to run."""
    place.write(
        {
            "mcpServers": {"a": GOOD, "b": {"command": "x", "args": ["${cmd:id}"]}},
            "settings": {"allowCommands": True},
        }
    )
    place.file.chmod(0o666)
    loaded = place.start()
    assert not loaded.settings.allow_commands
    assert commands(loaded)["a"] == "good"
    assert "runs a program" in commands(loaded)["b"]


def test_name_that_is_not_valid_is_left_out(place: Place) -> None:
    place.write_servers(**{"a": GOOD, "../../b": GOOD, "c": BROKEN})
    assert list(place.start().specs) == ["a", "c"]


def test_server_that_is_defined_twice_is_invalid(place: Place) -> None:
    """Which of both was meant is unknown."""
    place.write('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}, "b": {"command": "good"}}}')
    assert commands(place.start()) == {"a": "! 'a' is defined more than once", "b": "good"}


def test_disabled_entry_with_an_error_stays_disabled(place: Place) -> None:
    place.write_servers(a={**BROKEN, "enabled": False}, b={**BROKEN, "disabled": True}, c=BROKEN)
    assert [spec.enabled for spec in place.start().specs.values()] == [False, False, True]


def test_stored_configuration_is_private(place: Place) -> None:
    """It contains whatever secrets the file contains."""
    place.write_servers(a={"command": "x", "env": {"TOKEN": "secret-value"}})
    place.start()
    (stored,) = place.state.iterdir()
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    stored.write_text("[]")
    place.write("{")
    with pytest.raises(BadSpec):
        place.start()
