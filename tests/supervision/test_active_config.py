"""How a changed configuration file affects the active set of servers, tested without a daemon."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from mcpd.config.check_document import LoadedConfig
from mcpd.config.http import HttpSettings
from mcpd.config.load_at_start import load_at_start
from mcpd.model.errors import BadSpec, Conflict, UnknownServer
from mcpd.model.events import Event
from mcpd.model.server_spec import InvalidSpec, StdioSpec
from mcpd.state.active_config import ActiveConfig
from mcpd.supervision.supervisor import Supervisor
from tests.e2e.harness import BOUND
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

    def begin(self, http_problem: str = "", open_http: Callable[[HttpSettings], str] = str) -> ActiveConfig:
        around = surroundings(self._path, self.events.append)
        self.supervisor = Supervisor(around)
        state = self._path / "state"
        loaded = load_at_start(None, self.environ, state)
        own = loaded, None, self.environ, self.supervisor, around.store, around.redactor, state
        return ActiveConfig(*own, http_problem, open_http)

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
    assert home.directory / "config.yaml" in configuration.file.candidate_paths()
    (home.directory / "config.yaml").write_text("mcpServers: {a: {command: x}}")
    await configuration.reload_if_changed()
    assert home.names == ["a"]


async def test_deleted_default_file_is_reported_and_servers_keep_running(home: Home) -> None:
    """Only a `reload` applies the deletion."""
    home.write("a")
    configuration = home.begin()
    home.file.unlink()
    await configuration.reload_if_changed()
    assert home.names == ["a"]
    assert [problem.message for problem in configuration.status().problems] == [f"{home.file} was deleted"]
    for edit in (configuration.add("b", {"command": "x"}, save=True), configuration.remove("a", save=True)):
        with pytest.raises(BadSpec, match="was deleted"):
            await edit
    assert (home.names, home.file.exists()) == (["a"], False)
    await configuration.reload()
    assert (home.names, configuration.status().problems) == ([], ())
    await configuration.add("b", {"command": "x"}, save=True)
    assert home.names == ["b"]


async def test_edit_changes_only_what_it_names(home: Home) -> None:
    """A secret that was shown masked stays; a mask that would replace one is refused."""
    entry = {"command": "x", "args": ["a"], "env": {"API_KEY": "s3cr3t-value", "B": "1"}, "cwd": "/"}
    home.file.write_text(json.dumps({"mcpServers": {"a": entry, "other": {"command": "y"}}}))
    active = home.begin()
    changes = {"args": ["b"], "env": {"B": None, "C": "2"}, "cwd": None}
    assert (await active.edit("a", changes)).changed == ("a",)
    wanted = {"command": "x", "args": ["b"], "env": {"API_KEY": "s3cr3t-value", "C": "2"}}
    assert json.loads(home.file.read_text())["mcpServers"] == {"a": wanted, "other": {"command": "y"}}
    deep: dict[str, object] = {}
    for _ in range(900):
        deep = {"env": deep}
    for wrong in ({"env": {"API_KEY": "***"}}, {"command": 5}, deep):
        with pytest.raises(BadSpec):
            await active.edit("a", wrong)
    with pytest.raises(UnknownServer):
        await active.edit("b", {})
    assert json.loads(home.file.read_text())["mcpServers"]["a"] == wanted


async def test_status_names_the_copy_that_is_used_for_an_unusable_file(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the source, also in the history and in the log."""
    home.write("a")
    home.begin()
    copy = tmp_path / "state" / "last-valid-config.json"
    home.file.write_text("{ not JSON")
    home.events.clear()
    active = home.begin()
    status = active.status()
    assert home.names == ["a"]
    assert (status.source, status.path, status.rejected) == (str(copy), str(home.file), True)
    assert f"generation 1 from {copy}" in home.events[0].message
    logged = f"the configuration file is unusable; its last valid content is used ({copy}): {home.file}: not"
    assert caplog.messages[-1].startswith(logged)
    home.write("a")
    await active.reload()
    assert (active.status().source, active.status().rejected) == (str(home.file), False)


async def test_error_of_the_start_does_not_block_changes_of_other_entries(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it is fixed, each change reports it. A further error is refused."""

    def write(**servers: object) -> str:
        home.file.write_text(json.dumps({"mcpServers": {"b": {"comand": "x"}, **servers}}))
        return home.file.read_text()

    good = {"command": "x"}
    write(a=good)
    active = home.begin()
    caplog.clear()
    valid = write(a=good, c=good)
    await active.reload_if_changed()
    assert home.names == ["b", "a", "c"]
    assert isinstance(home.supervisor.desired["b"], InvalidSpec)
    status = active.status()
    assert ([each.path for each in status.problems], status.rejected) == (["$.mcpServers.b.comand"], False)
    assert "not started: b" in caplog.text
    assert any("applied with errors" in event.message for event in home.events)
    write(a=good, c={"comand": "x"})
    await active.reload_if_changed()
    assert (len(active.status().problems), active.status().rejected) == (2, True)
    home.file.write_text(valid)
    await active.reload_if_changed()
    assert (len(active.status().problems), active.status().rejected) == (1, False)
    write(d=good)
    applied = await active.reload()
    assert (applied.added, home.names) == (("d",), ["b", "d"])
    assert "comand" in applied.warnings[0]


async def test_file_with_an_error_does_not_replace_an_applied_set(home: Home) -> None:
    """The set that was applied through the API is restored, as if the daemon had not been restarted."""
    home.write("a")
    active = home.begin()
    await active.set_servers({"applied": {"command": "x"}})
    home.file.write_text('{"mcpServers": {"a": {"comand": "x"}}}')
    around = surroundings(home._path, home.events.append)
    around.store.state = active._state_file.state
    supervisor = Supervisor(around)
    loaded = load_at_start(None, home.environ, home._path / "state")
    ActiveConfig(loaded, None, home.environ, supervisor, around.store, around.redactor, home._path / "state")
    assert list(supervisor.desired) == ["applied"]


async def test_broken_entries_do_not_prevent_changes_of_others(home: Home) -> None:
    """After a start with errors, servers can be added and removed, also the broken ones."""
    broken = {name: {"comand": "x"} for name in ("b", "c")}
    home.file.write_text(json.dumps({"mcpServers": {"a": {"command": "x"}, **broken}}))
    active = home.begin()
    await active.add("new", {"command": "x"}, save=True)
    assert home.names == ["a", "b", "c", "new"]
    assert [type(home.supervisor.desired[name]) for name in ("b", "new")] == [InvalidSpec, StdioSpec]
    assert len(active.status().problems) == 2
    await active.remove("b", save=True)
    assert [problem.path for problem in active.status().problems] == ["$.mcpServers.c.comand"]
    await active.add("c", {"command": "x"}, save=True, replace=True)
    assert active.status().problems == ()
    assert home.names == ["a", "c", "new"]


async def test_edit_with_a_new_error_is_refused(home: Home) -> None:
    """Neither the new definition nor the rest of the file may have errors that were not there before."""
    home.file.write_text(json.dumps({"mcpServers": {"a": {"command": "x"}, "b": {"comand": "x"}}}))
    active = home.begin()
    with pytest.raises(BadSpec, match="unknown field 'commmand'"):
        await active.add("new", {"commmand": "x"}, save=True)
    assert "new" not in home.file.read_text()
    with pytest.raises(BadSpec, match=r"named 'a' already exists .*`mcpctl add --replace`"):
        await active.add("a", {"command": "x"}, save=True)
    home.file.write_text(json.dumps({"mcpServers": {"a": {"commnd": "x"}, "b": {"comand": "x"}}}))
    with pytest.raises(BadSpec, match="unknown field 'commnd'"):
        await active.add("new", {"command": "x"}, save=True)
    assert home.names == ["a", "b"]


async def test_reload_names_changed_settings_and_those_that_need_a_restart(home: Home) -> None:
    """The latter as long as they differ from those that the daemon was started with."""
    home.write("a", maxStarts=2, logLevel="info")
    configuration = home.begin()
    home.write("a", maxStarts=3, timeout=5000)
    applied = await configuration.reload()
    assert applied.settings_changed == ("logLevel", "maxStarts", "timeout")
    assert applied.restart_needed == ("maxStarts", "logLevel")
    assert [event.message for event in home.events][-2:] == [
        f"generation 2 from {home.file}: ~a; settings changed: logLevel, maxStarts, timeout",
        "definition changed: a default in the settings (generation 2)",
    ]
    home.write("a", "b", maxStarts=3, timeout=5000)
    applied = await configuration.reload()
    assert (applied.added, applied.settings_changed) == (("b",), ())
    assert applied.restart_needed == ("maxStarts", "logLevel")


async def test_port_is_opened_without_a_restart_but_not_closed(home: Home) -> None:
    """The warning about one that could not be opened remains while the setting does."""
    home.write("a", http="127.0.0.1:8931")
    answers = {8931: "in use", 8932: ""}
    configuration = home.begin("cannot listen", lambda http: answers[http.listen.port])
    assert configuration.status().warnings == ("cannot listen",)
    home.write("a", "b", http="127.0.0.1:8931")
    assert (await configuration.reload()).restart_needed == ()
    assert configuration.status().warnings == ("in use",)
    home.write("a")
    assert (await configuration.reload()).restart_needed == ()
    assert configuration.status().warnings == ()
    home.write("a", http="127.0.0.1:8932")
    assert (await configuration.reload()).restart_needed == ()
    assert configuration.status().warnings == ()
    home.write("a")
    assert (await configuration.reload()).restart_needed == ("http",)


async def test_event_loop_continues_while_the_file_is_parsed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds with a large YAML file. A cancelled edit is finished, and edits take turns."""
    home.write("a")
    active = home.begin()
    turn, is_parsing = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def slow(path: Path | None, environ: Mapping[str, str], state: Path) -> LoadedConfig:
        token.run_sync_soon(is_parsing.set)
        assert turn.wait(BOUND)
        return load_at_start(path, environ, state)

    monkeypatch.setattr("mcpd.state.config_file.load_at_start", slow)
    work: list[Callable[[], Awaitable[object]]] = [
        active.reload,
        partial(active.add, "b", {"command": "x"}, save=True),
        partial(active.remove, "a", save=True),
        partial(active.insert_rule, 0, {"decision": "deny", "tools": ["x"]}),
    ]
    for each, names in zip(work, (["a"], ["a", "b"], ["b"], ["b"]), strict=True):
        turn.clear()
        is_parsing = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(each)
            with trio.fail_after(BOUND):
                await is_parsing.wait()  # the event loop runs while the thread parses
            if each != active.reload:
                nursery.cancel_scope.cancel()
            turn.set()
        assert home.names == names
    assert [rule.tools for rule in active.loaded.settings.policies] == [("x",)]
    async with trio.open_nursery() as nursery:
        for name in "cdef":
            nursery.start_soon(partial(active.add, name, {"command": "x"}, save=True))
    assert sorted(home.names) == list("bcdef")
    await active.reload_if_changed()
    assert sorted(home.names) == list("bcdef")


async def test_changes_take_turns(home: Home) -> None:
    """None of them undoes another one, and the generation is compared with what the previous one left."""
    home.write("old")
    configuration = home.begin()
    generation = home.supervisor.generation
    home.write("old", "new")
    refused = []

    async def replace() -> None:
        try:
            await configuration.set_servers({"other": {"command": "x"}}, if_generation=generation)
        except Conflict as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(configuration.reload)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(partial(configuration.add, "added", {"command": "x"}, save=False))
        nursery.start_soon(replace)
    assert home.names == ["old", "new", "added"]
    assert refused
    await configuration.remove("old", save=False)
    assert home.names == ["new", "added"]
    with pytest.raises(BadSpec, match="already exists"):
        await configuration.add("added", {"command": "x"}, save=False)
    await configuration.set_servers({"other": {"command": "x"}}, if_generation=home.supervisor.generation)
    assert home.names == ["other"]
