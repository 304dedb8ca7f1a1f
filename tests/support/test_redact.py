"""Secrets are masked by value, anywhere in a text."""

from __future__ import annotations

from mcpd.support.redact import MASK, Redactor


def test_every_known_value_is_masked_the_longest_first() -> None:
    """No part of a secret that contains another secret may remain."""
    redactor = Redactor()
    assert redactor.mask("s3cret-token") == "s3cret-token"
    redactor.add(["s3cret", "s3cret-token"])
    redactor.add(["a.b*c[d"])
    assert redactor.mask("x s3cret-token y s3cret a.b*c[d aXb") == f"x {MASK} y {MASK} {MASK} aXb"


def test_short_values_are_not_masked() -> None:
    """Masking them would hide ordinary words."""
    redactor = Redactor()
    redactor.add(["yes", "", "12345"])
    assert redactor.mask("yes 12345") == "yes 12345"


def test_last_tokens_of_a_restarted_server_are_masked() -> None:
    """Only the most recent tokens of a server are kept, so that hourly tokens do not slow down logging.
    Values in the configuration and those used by other servers are always known."""
    redactor = Redactor()
    redactor.add(["of-the-configuration"])
    redactor.add(["of-another-server"], of="calm")
    for n in range(1000):
        redactor.add([f"token-number-{n}"], of="restless")
    known = len(redactor._known)
    for n in range(1000, 1100):
        redactor.add([f"token-number-{n}"], of="restless")
        redactor.add([f"token-number-{n}"], of="restless")  # like after a crash
        redactor.add(["of-the-configuration"])
    assert len(redactor._known) == known < 200
    text = "token-number-1099 token-number-1050 of-the-configuration of-another-server"
    assert redactor.mask(text) == " ".join([MASK] * 4)
    assert redactor.mask("token-number-1") == "token-number-1"
