"""The configuration on disk: the daemon loads, checks and edits it in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import trio

from mcpd.config.check_document import LoadedConfig
from mcpd.config.load_at_start import load_at_start, save_last_valid
from mcpd.config.loader import candidate_paths, parse_config
from mcpd.files.own_thread import OwnThread
from mcpd.model.config_api import ConfigCheck
from mcpd.model.errors import BadSpec, Problem
from mcpd.process.memory import trim_heap_soon


class ConfigFile:
    """The parsers are written in Python, so the event loop waits only a moment for each of their steps, while
    a large YAML file takes them seconds.
    """

    def __init__(
        self, flag: Path | None, environ: Mapping[str, str], state_dir: Path, loaded: LoadedConfig
    ) -> None:
        """`flag`: see `load`. `loaded`: what was loaded when the daemon started."""
        self.thread = OwnThread()
        self._flag = flag
        self._environ = environ
        self._state_dir = state_dir
        save_last_valid(loaded, state_dir)

    def candidate_paths(self) -> tuple[Path, ...]:
        """Return every file that `load` might read, whether it exists or not."""
        return candidate_paths(self._flag, self._environ)

    async def check(self, path: Path, text: str) -> ConfigCheck:
        """Check `text` as the content of the file `path`, with the environment of mcpd. Applies nothing."""
        found = await self.thread.run(self._check, path, text)
        trim_heap_soon()
        return found

    def _check(self, path: Path, text: str) -> ConfigCheck:
        try:
            loaded = parse_config(path, text.encode("utf-8", "surrogatepass"), self._environ)
        except BadSpec as error:
            return ConfigCheck(errors=tuple(error.problems))
        return ConfigCheck(servers=tuple(sorted(loaded.specs)), warnings=loaded.warnings)

    async def load(self, active: LoadedConfig) -> LoadedConfig:
        """Return what is in the file now. Raises BadSpec for errors that `active` does not tolerate."""
        try:
            return await self.thread.run(self._load, active)
        finally:
            trim_heap_soon()  # the file may have megabytes, and parsing takes many times as much

    def _load(self, active: LoadedConfig) -> LoadedConfig:
        """Load the file. Errors that were tolerated at the start of mcpd, and are still there, affect only
        the entries that contain them, so that they do not block changes of others."""
        loaded = load_at_start(self._flag, self._environ, self._state_dir)
        if not set(loaded.problems) <= set(active.problems):
            raise BadSpec(list(loaded.problems), str(loaded.path))
        save_last_valid(loaded, self._state_dir)
        return loaded

    async def edit(self, active: LoadedConfig, edit: Callable[[], bool | None]) -> LoadedConfig | None:
        """Change the file, and return what is in it then; None if `edit` returned False, and changed nothing.

        A caller that is cancelled still gets the result: what is active must not differ from the file. Raises
        BadSpec if the file was deleted: a new one would contain only the edit, and all servers would end.
        """

        def run() -> LoadedConfig | None:
            if active.digest and not active.path.exists():
                raise deleted(active.path)
            return None if edit() is False else self._load(active)

        found = None
        with trio.CancelScope(shield=True):
            found = await self.thread.run(run)
        return found  # noqa: RET504  # for mypy, a scope may end its block


def deleted(path: Path) -> BadSpec:
    fix = "restore it, or run `mcpctl config reload` to continue without servers"
    return BadSpec([Problem("$", f"{path} was deleted", fix)])
