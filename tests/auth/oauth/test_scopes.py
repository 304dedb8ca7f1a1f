"""Which scopes are requested."""

from __future__ import annotations

import pytest

from mcpd.auth.oauth.authorization import StepUpMemory, first_request, more_scopes


@pytest.mark.parametrize(
    ("configured", "challenge", "resource", "server", "wanted"),
    [
        (None, ("a",), ("a", "b"), ("x",), ("a",)),
        (None, None, ("a", "b"), ("x",), ("a", "b")),
        (None, (), ("a", "b"), (), ("a", "b")),
        (None, None, None, ("x", "openid"), None),
        (None, None, (), (), None),
        (("c",), ("a",), ("b",), (), ("c",)),
        ((), ("a",), ("b",), (), None),
        (None, ("a",), None, ("a", "offline_access"), ("a", "offline_access")),
        (None, ("a", "offline_access"), None, ("offline_access",), ("a", "offline_access")),
        (None, ("a",), None, ("a",), ("a",)),
        (("c",), None, None, ("offline_access",), ("c",)),
        (None, None, None, ("offline_access",), None),
    ],
)
def test_first_request(
    configured: tuple[str, ...] | None,
    challenge: tuple[str, ...] | None,
    resource: tuple[str, ...] | None,
    server: tuple[str, ...],
    wanted: tuple[str, ...] | None,
) -> None:
    found = first_request(configured=configured, challenge=challenge, resource=resource, server=server)
    assert found == wanted


def test_a_step_up_asks_for_the_union_in_order() -> None:
    assert more_scopes(("a", "b"), None, ("b", "c")) == ("a", "b", "c")


def test_a_person_is_asked_once_for_the_same_scopes_and_twice_for_one_operation() -> None:
    memory = StepUpMemory()
    assert memory.may_ask("tools/call x", ("w", "v"))
    memory.asked("tools/call x", ("w", "v"))
    assert not memory.may_ask("tools/call x", ("v", "w"))
    assert not memory.may_ask("tools/call y", ("v", "w"))
    assert memory.may_ask("tools/call x", ("w",))
    memory.asked("tools/call x", ("w",))
    assert not memory.may_ask("tools/call x", ("z",))
    assert memory.may_ask("tools/call y", ("z",))
    for number in range(2000):
        memory.asked(f"tools/call {number}", ("w",))
    assert len(memory._asked) == 1000
