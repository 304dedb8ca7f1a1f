"""One-time codes that are valid for a minute, and the sessions that they open."""

from __future__ import annotations

import attrs
import pytest

from mcpd.api.dashboard.page import (
    CODE_LIFETIME,
    SESSION_LIFETIME,
    CodeReused,
    DashboardSession,
    DashboardSessions,
)


@attrs.define
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def log_in(visits: DashboardSessions) -> DashboardSession:
    visit = visits.redeem(visits.create_code())
    assert visit is not None
    return visit


def test_code_opens_a_session_that_requires_both_secrets() -> None:
    """The cookie alone proves nothing: browsers send it to every port of the machine."""
    visits = DashboardSessions(Clock())
    visit, other = log_in(visits), log_in(visits)
    assert visits.find(visit.cookie, visit.key) is visit
    for cookie, key in [
        (visit.cookie, ""),
        ("", visit.key),
        ("", ""),
        (visit.cookie, other.key),
        ("é", "\udcff"),
    ]:
        assert visits.find(cookie, key) is None
    assert len(visit.cookie) >= 43
    assert len(visit.key) >= 43


def test_code_is_valid_for_a_minute() -> None:
    clock = Clock()
    visits = DashboardSessions(clock)
    early, late = visits.create_code(), visits.create_code()
    clock.now += CODE_LIFETIME
    assert visits.redeem(early) is not None
    clock.now += 0.1
    assert visits.redeem(late) is None
    assert visits.redeem("") is None
    assert visits.redeem("\udcff") is None


def test_reused_code_ends_its_session() -> None:
    """One of the two users stole the code, and the daemon cannot tell which."""
    visits = DashboardSessions(Clock())
    code = visits.create_code()
    visit = visits.redeem(code)
    assert visit is not None
    said: list[str] = []
    visit.sockets[1] = said.append
    with pytest.raises(CodeReused):
        visits.redeem(code)
    assert visits.find(visit.cookie, visit.key) is None
    assert said == ["logged out"]


def test_session_lives_while_it_is_used() -> None:
    """A page that stays open all night still works in the morning."""
    clock = Clock()
    visits = DashboardSessions(clock)
    used, left, watched = log_in(visits), log_in(visits), log_in(visits)
    watched.sockets[1] = lambda _: None
    clock.now += SESSION_LIFETIME
    assert visits.find(used.cookie, used.key) is used
    clock.now += 1
    assert visits.find(left.cookie, left.key) is None
    assert visits.find(used.cookie, used.key) is used
    assert visits.find(watched.cookie, watched.key) is watched


def test_number_of_sessions_is_bounded_and_open_ones_are_kept_longest() -> None:
    clock = Clock()
    visits = DashboardSessions(clock)
    watched, first = log_in(visits), log_in(visits)
    watched.sockets[1] = lambda _: None
    for _ in range(15):
        clock.now += 1
        log_in(visits)
    assert visits.find(first.cookie, first.key) is None
    assert visits.find(watched.cookie, watched.key) is watched
    codes = [visits.create_code() for _ in range(17)]
    assert visits.redeem(codes[0]) is None
    assert visits.redeem(codes[1]) is not None
    visits.close("stopping")
    assert visits.find(watched.cookie, watched.key) is None
