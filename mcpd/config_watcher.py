"""A changed configuration file comes into force by itself."""

from __future__ import annotations

import logging

from mcpd.active_config import ActiveConfig
from mcpd.support.audit_actor import acting_for
from mcpd.support.file_watcher import watch_files

log = logging.getLogger("mcpd.active_config")


async def watch_config(configuration: ActiveConfig) -> None:
    """As long as the settings want it, apply every change of the file. Runs until cancelled."""
    while True:
        await configuration.watch_enabled.wait_until(bool)
        try:
            with watch_files(map(str, configuration.candidate_paths())) as changes:
                while configuration.watch_enabled.value:
                    _reload_if_changed(configuration)  # at first too: it may have changed since it was read
                    await changes.next_change()
        except OSError as error:
            log.warning("changes of the configuration are not noticed (%s); use `mcpctl reload`", error)
            await configuration.watch_enabled.wait_until(lambda watched: not watched)


def _reload_if_changed(configuration: ActiveConfig) -> None:
    try:
        with acting_for(lambda: "a change of the file"):
            configuration.reload_if_changed()
    except Exception:
        log.exception("reading the configuration again failed; nothing has changed")
