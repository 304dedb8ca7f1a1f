"""Applies changes of the configuration file when they happen."""

from __future__ import annotations

import logging

from mcpd.active_config import ActiveConfig
from mcpd.event_history import acting_for
from mcpd.files.watcher import watch_files

log = logging.getLogger("mcpd.active_config")


async def watch_config(configuration: ActiveConfig) -> None:
    """Apply every change of the file while the setting `watch` is on. Runs until cancelled."""
    while True:
        await configuration.watch_enabled.wait_until(bool)
        try:
            with watch_files(map(str, configuration.candidate_paths())) as changes:
                while configuration.watch_enabled.value:
                    # Also before the first change: it may have changed since it was loaded.
                    await _reload_if_changed(configuration)
                    await changes.next_change()
        except OSError as error:
            log.warning("cannot watch the configuration file (%s); run `mcpctl reload` after changes", error)
            await configuration.watch_enabled.wait_until(lambda watched: not watched)


async def _reload_if_changed(configuration: ActiveConfig) -> None:
    try:
        with acting_for(lambda: "a change of the file"):
            await configuration.reload_in_background()
    except Exception:
        log.exception("reloading the configuration failed; nothing was changed")
