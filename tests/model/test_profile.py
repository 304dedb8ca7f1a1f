"""The selection of a profile for a directory."""

from __future__ import annotations

import pytest

from mcpd.model.policy import match_profile

RULES = {
    "/home/me/work": "work",
    "/home/me/work/secret-*": "nothing",
    "/home/me/*/tools": "tools",
    "/home/me/work/tools": "*",
    "/srv/?": "one",
}


@pytest.mark.parametrize(
    ("directory", "profile"),
    [
        ("/home/me/work", "work"),
        ("/home/me/work/", "work"),
        ("/home/me/work/a/b", "work"),
        ("/home/me/workshop", None),
        ("/home/me", None),
        ("/", None),
        ("/home/me/work/secret-x/src", "nothing"),
        ("/home/me/work/../private", None),
        ("/home/me/play/tools/x", "tools"),
        ("/home/me/work/tools", "*"),
        ("/srv/a/b", "one"),
        ("/srv/ab", None),
    ],
)
def test_deepest_matching_profile_rule_wins(directory: str, profile: str | None) -> None:
    """A rule applies to a directory and all below it. Of equally deep rules, one without wildcards wins."""
    assert match_profile(directory, RULES) == profile
    assert match_profile(directory, dict(reversed(RULES.items()))) == profile
