"""What is known about the questions of a server outlives the daemon."""

from __future__ import annotations

from pathlib import Path

from mcpd.state.state_file import StateFile
from mcpd.supervision.elicitation_history import QUIET_AFTER, ElicitationHistory

CALL = "tools/call"


def test_what_tools_ask_is_known_to_the_next_daemon(tmp_path: Path) -> None:
    store = StateFile(tmp_path, tmp_path)
    before = ElicitationHistory(store, "it")
    before.record_request(CALL, "asks")
    for tool, calls in {
        "quiet": QUIET_AFTER,
        "new": QUIET_AFTER - 1,
        "asks": 9,
        "changed": QUIET_AFTER,
    }.items():
        for _ in range(calls):
            before.record_answer(CALL, tool)
    before.record_request(CALL, "changed")
    before.record_request(CALL, "maybe", is_certain=False)
    assert before.has_asked(CALL, "maybe")
    assert not ElicitationHistory(store, "it").has_asked(CALL, "maybe")
    for known in (before, ElicitationHistory(store, "it")):
        asking = {tool: known.may_ask(CALL, tool) for tool in ("asks", "quiet", "new", "changed")}
        assert asking == {"asks": True, "quiet": False, "new": True, "changed": True}
        assert known.has_asked(CALL, "asks")
        assert known.has_asked(CALL, "changed")
        assert not known.has_asked(CALL, "new")
    assert not ElicitationHistory(store, "it").separates_clients
    before.separate_clients()
    assert ElicitationHistory(store, "it").separates_clients
    assert ElicitationHistory(store, "other").may_ask(CALL, "quiet")


def test_what_is_kept_for_a_server_is_bounded(tmp_path: Path) -> None:
    store = StateFile(tmp_path, tmp_path)
    history = ElicitationHistory(store, "it")
    for number in range(3000):
        history.record_request(CALL, str(number))
    history.record_request(CALL, "x" * 10_000)
    assert sum(map(len, store.asking("it"))) < 10_000
