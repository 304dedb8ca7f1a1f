"""Secrets are masked by value, wherever they stand."""

from __future__ import annotations

from mcpd.support.redact import MASK, Redactor


def test_every_known_value_is_masked_the_longest_first() -> None:
    """A secret that contains another leaves nothing of itself."""
    redactor = Redactor()
    assert redactor.mask("s3cret-token") == "s3cret-token"
    redactor.add(["s3cret", "s3cret-token"])
    redactor.add(["a.b*c[d"])
    assert redactor.mask("x s3cret-token y s3cret a.b*c[d aXb") == f"x {MASK} y {MASK} {MASK} aXb"


def test_short_values_are_left_alone() -> None:
    """They would mask ordinary words."""
    redactor = Redactor()
    redactor.add(["yes", "", "12345"])
    assert redactor.mask("yes 12345") == "yes 12345"
