"""How a changed configuration file affects the active set of servers, tested without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpd.active_config import ActiveConfig
from mcpd.config.loader import load
from mcpd.model.errors import BadSpec
from mcpd.model.events import Event
from mcpd.supervision.supervisor import Supervisor
from tests.supervision.peer import surroundings


class Home:
    """A user's default configuration and the active set."""

    def __init__(self, path: Path) -> None:
        self.directory = path / "config" / "mcpd"
        self.directory.mkdir(parents=True)
        self.file = self.directory / "config.json"
        self.events: list[Event] = []
        self.environ = {"HOME": str(path), "XDG_CONFIG_HOME": str(path / "config")}
        self._path = path

    def begin(self) -> ActiveConfig:
        around = surroundings(self._path, self.events.append)
        self.supervisor = Supervisor(around)
        loaded = load(None, self.environ)
        return ActiveConfig(loaded, None, self.environ, self.supervisor, around.store, around.redactor)

    def write(self, *names: str, **settings: object) -> None:
        servers = {name: {"command": "x"} for name in names}
        self.file.write_text(json.dumps({"mcpServers": servers, "settings": settings}))

    @property
    def names(self) -> list[str]:
        return list(self.supervisor.desired)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def test_configuration_file_may_appear_later(home: Home) -> None:
    """The file may have any format: all default paths are watched."""
    configuration = home.begin()
    assert configuration.watch_enabled.value
    assert home.directory / "config.yaml" in configuration.candidate_paths()
    (home.directory / "config.yaml").write_text("mcpServers: {a: {command: x}}")
    configuration.reload_if_changed()
    assert home.names == ["a"]


async def test_deleted_default_file_is_reported_and_servers_keep_running(home: Home) -> None:
    """Only a `reload` applies the deletion."""
    home.write("a")
    configuration = home.begin()
    home.file.unlink()
    configuration.reload_if_changed()
    assert home.names == ["a"]
    assert [problem.message for problem in configuration.status().problems] == [f"{home.file} was deleted"]
    configuration.reload()
    assert (home.names, configuration.status().problems) == ([], ())


async def test_second_default_file_is_refused_until_deleted(home: Home) -> None:
    """The conflict is reported once, and nothing is reapplied when it ends."""
    home.write("a")
    configuration = home.begin()
    generation, other = home.supervisor.generation, home.directory / "config.toml"
    other.write_text("")
    home.events.clear()
    configuration.reload_if_changed()
    configuration.reload_if_changed()
    assert len(configuration.status().problems) == len(home.events) == 1
    other.unlink()
    configuration.reload_if_changed()
    assert configuration.status().problems == ()
    assert home.supervisor.generation == generation


async def test_setting_can_turn_off_file_watching(home: Home) -> None:
    """A configuration from an environment variable is never watched."""
    home.write("a")
    configuration = home.begin()
    home.write("a", watch=False)
    configuration.reload_if_changed()
    assert not configuration.watch_enabled.value
    home.environ["MCPD_SERVERS"] = '[{"name": "b", "command": "x"}]'
    assert not home.begin().watch_enabled.value


@pytest.mark.parametrize(
    ("rules", "place", "fix"),
    [
        ({"~/work": "wrok"}, '$.settings.profileByDirectory["~/work"]', "did you mean 'work'?"),
        ({"work/x": "work"}, '$.settings.profileByDirectory["work/x"]', "begin it with / or ~/"),
    ],
)
async def test_invalid_directory_rule_is_refused(
    home: Home, rules: dict[str, str], place: str, fix: str
) -> None:
    """A rule that never matches would expose more servers than intended."""
    home.write("a", profiles={"work": {"servers": []}}, profileByDirectory=rules)
    with pytest.raises(BadSpec) as refused:
        load(None, home.environ)
    (problem,) = refused.value.problems
    assert (problem.path, problem.fix) == (place, fix)
