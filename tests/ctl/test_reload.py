"""`mcpctl reload`: what it says if the daemon has noticed the changed file before."""

from __future__ import annotations

import pytest

from tests.ctl.conftest import Mcpctl
from tests.ctl.fake_daemon import FakeDaemon, status
from tests.ctl.test_commands import APPLIED

CURRENT = {**APPLIED, "added": [], "removed": []}
COUNTS = "0 added, 0 changed, 0 removed; 1 server unchanged; generation 4\n"


def test_reload_of_the_current_configuration_says_since_when_it_is_used(
    daemon: FakeDaemon, mcpctl: Mcpctl
) -> None:
    """Otherwise "0 changed" looks as if the change was not found."""
    daemon.answers["mcpd/reload"] = CURRENT
    ran = mcpctl("reload")
    assert ran.out.startswith(
        COUNTS + "nothing to change: mcpd has used this configuration since 2026-11-21 03:00:00 ("
    )
    assert mcpctl("reload", "--json").json() == CURRENT


@pytest.mark.parametrize(
    ("source", "answer"),
    [("api", CURRENT), ("/c.json", {**CURRENT, "settings_changed": ["http"]}), ("/c.json", APPLIED)],
)
def test_reload_that_has_an_effect_says_nothing_more(
    daemon: FakeDaemon, mcpctl: Mcpctl, source: str, answer: object
) -> None:
    """A set from `mcpctl apply` is replaced, even if it has the same servers."""
    daemon.answers |= {"mcpd/status": status(source=source), "mcpd/reload": answer}
    ran = mcpctl("reload")
    assert (ran.code, "nothing to change" in ran.out) == (0, False)
