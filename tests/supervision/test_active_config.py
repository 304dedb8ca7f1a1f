"""What a changed file does to the set in force, without a daemon."""

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
    """The default configuration of a user, and what is in force."""

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
    """And in any of the formats: all their places are looked at."""
    configuration = home.begin()
    assert configuration.watch_enabled.value
    assert home.directory / "config.yaml" in configuration.candidate_paths()
    (home.directory / "config.yaml").write_text("mcpServers: {a: {command: x}}")
    configuration.reload_if_changed()
    assert home.names == ["a"]


async def test_deleted_default_file_is_reported_and_servers_keep_running(home: Home) -> None:
    """Without a file there are no servers, and that is for a person to say: by `reload`."""
    home.write("a")
    configuration = home.begin()
    home.file.unlink()
    configuration.reload_if_changed()
    assert home.names == ["a"]
    assert [problem.message for problem in configuration.status().problems] == [f"{home.file} was deleted"]
    configuration.reload()
    assert (home.names, configuration.status().problems) == ([], ())


async def test_second_default_file_is_refused_until_deleted(home: Home) -> None:
    """Told once, however often it is looked at; nothing is applied anew when it is over."""
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
    """And one from a variable never is."""
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
async def test_a_rule_for_directories_names_a_profile_and_a_whole_path(
    home: Home, rules: dict[str, str], place: str, fix: str
) -> None:
    """A rule that can never hold would show more than was meant."""
    home.write("a", profiles={"work": {"servers": []}}, profileByDirectory=rules)
    with pytest.raises(BadSpec) as refused:
        load(None, home.environ)
    (problem,) = refused.value.problems
    assert (problem.path, problem.fix) == (place, fix)
