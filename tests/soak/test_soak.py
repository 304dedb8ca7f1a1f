"""Short runs of each soak variant, and tests that the checks find what they look for."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.clients import Address, ControlClient, Target
from tests.soak.features import use_features
from tests.soak.ledger import Outcome, judge, read_ledgers
from tests.soak.load import load


@pytest.mark.slow
def test_calls_of_many_clients_are_answered_once_by_the_right_server(tmp_path: Path) -> None:
    report = load(tmp_path, 2.0, clients=24, own_servers=5)
    assert report.wrong == [], str(report)
    assert len(report.worker.by_client) == 24
    assert all(report.worker.by_client.values()), str(report)
    assert report.executed >= report.worker.calls


@pytest.mark.slow
def test_every_feature_leaves_nothing_behind(tmp_path: Path) -> None:
    report = use_features(tmp_path, seconds=0)
    assert report.wrong == []
    assert (report.rounds, report.exit_code) == (2, 0)
    assert report.is_back, f"{report.before}, then {report.after}: {report.held}"


@pytest.mark.slow
def test_calls_of_killed_and_reconnected_servers_run_as_often_as_answers_say(tmp_path: Path) -> None:
    report = load(tmp_path, 3.0, clients=24, own_servers=5, with_faults=True)
    assert report.wrong == [], str(report)
    assert report.faults.total() > 0, str(report)
    assert report.worker.left > 0, str(report)


@pytest.mark.parametrize(
    ("executed", "outcome", "complaint"),
    [
        (1, Outcome.ANSWERED, ""),
        (0, Outcome.ANSWERED, "executed 0 times"),
        (2, Outcome.ANSWERED, "executed 2 times"),
        (0, Outcome.UNKNOWN, ""),
        (1, Outcome.UNKNOWN, ""),
        (2, Outcome.UNKNOWN, "executed 2 times"),
        (0, Outcome.NOT_RUN, ""),
        (1, Outcome.NOT_RUN, "executed 1 times"),
    ],
)
def test_ledger_and_outcomes_are_compared(executed: int, outcome: Outcome, complaint: str) -> None:
    found = judge(Counter({"s:c:1": executed} if executed else {}), [("s:c:1", outcome)])
    assert len(found) == bool(complaint)
    assert complaint in "".join(found)


def test_calls_at_a_wrong_server_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.ledger").write_text("a:c:1\nb:c:2\n")
    (tmp_path / "b.ledger").write_text("b:c:3\n")
    outcomes = [("a:c:1", Outcome.ANSWERED), ("b:c:2", Outcome.ANSWERED), ("b:c:3", Outcome.ANSWERED)]
    assert judge(read_ledgers(tmp_path), outcomes) == [
        "b:c:2: executed 0 times, but the client was received: answered",
        "b:c:2 at a: executed, but no client has sent it",
    ]
    assert judge({}, [("a:c:1", Outcome.NOT_RUN)] * 2) == ["a:c:1: two outcomes"]


class Alone(ControlClient):
    """A client of a test that answers."""

    def _connect(self) -> socket.socket:
        connection, self.other = socket.socketpair()
        return connection


ANSWERS = {
    "right": ({"id": 1, "result": {"output": "s s:c:1"}}, ""),
    "of another server": ({"id": 1, "result": {"output": "t s:c:1"}}, "got 't s:c:1'"),
    "to another call": ({"id": 1, "result": {"output": "s s:c:2"}}, "got 's s:c:2'"),
    "to nothing": ({"id": 7, "result": {"output": "s s:c:1"}}, "an answer to nothing"),
    "typed": ({"id": 1, "error": {"message": "x", "data": {"code": "link_lost", "may_have_run": True}}}, ""),
    "untyped": ({"id": 1, "error": {"message": "x"}}, "'x'"),
    "a question": ({"id": 1, "method": "roots/list"}, "was asked roots/list"),
}


@pytest.mark.parametrize("which", ANSWERS)
def test_clients_notice_wrong_answers(which: str) -> None:
    answer, complaint = ANSWERS[which]
    client = Alone("c", Address("", 0, ""), [Target("s")], 1)
    with client.socket, client.other:
        client.fill()
        client.other.sendall(json.dumps({"jsonrpc": "2.0", **answer}).encode() + b"\n")
        client.read()
        assert len(client.wrong) == bool(complaint)
        assert complaint in "".join(client.wrong).replace('"', "'")


def test_second_answer_to_a_call_is_noticed() -> None:
    client = Alone("c", Address("", 0, ""), [Target("s")], 1)
    with client.socket, client.other:
        client.fill()
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"output": "s s:c:1"}}).encode() + b"\n"
        client.other.sendall(line * 2)
        client.read()
        assert client.outcomes == [("s:c:1", Outcome.ANSWERED)]
        assert "an answer to nothing" in client.wrong[0]
