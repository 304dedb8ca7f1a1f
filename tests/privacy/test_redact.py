"""Secrets are masked by value, anywhere in a text."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from urllib.parse import quote

import pytest

from mcpd.model.text import shorten
from mcpd.privacy.redact import MASK, Redactor
from tests.spelled import SHOWN


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
    redactor.add(["abcXabc1abcXabc"])
    assert redactor.mask("abcXabc1abcXabc1abcXabc abcXabc") == f"{MASK} abcXabc", "overlaps with itself"


SECRET = "pä'ss \\ \"w/o+rd%40<&>-1234567"


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("secret", [SECRET, "s3cret", "sk-live-0123456789abcdef", "x" * 10_000 + "/y"])
def test_secret_is_masked_in_every_spelling(secret: str, show: Callable[[str], str]) -> None:
    """At most one character at each end of it remains, in base64, where it shares bits with others."""
    redactor = Redactor()
    shown = redactor.mask(f"it said: {show(secret)}!")
    assert shown == f"it said: {show(secret)}!"
    redactor.add([secret])
    shown = redactor.mask(shown)
    assert MASK in shown
    assert len(shown.replace(MASK, "")) < 40


def test_lines_of_a_secret_are_masked_in_every_spelling() -> None:
    lines = [f"{n:02}-line-of-a-private-key/{'k' * 30}" for n in range(300)]
    redactor = Redactor()
    redactor.add(["\n".join(lines)])
    assert redactor.mask(f"{lines[7]} {lines[250]}") == f"{MASK} {MASK}"
    assert redactor.mask(quote(lines[7], safe="")) == MASK


@pytest.mark.parametrize("kept", [4, 8, 20])
def test_start_of_a_secret_before_a_cut_is_masked(kept: int) -> None:
    redactor = Redactor()
    redactor.add(["sk-live-0123456789abcdef"])
    cut = shorten("say sk-live-0123456789abcdef", 4 + kept)
    assert redactor.mask(f"it failed: {cut}; see its log") == f"it failed: say {MASK}…; see its log"
    assert redactor.mask_cut("say sk-live-0123456789abcdef"[: 4 + kept]) == f"say {MASK}"
    assert redactor.mask_cut("say s") == "say s"
    assert redactor.mask_cut("say s", 1) == f"say {MASK}"
    assert redactor.mask_cut("say sk-live-0123456789abcdef") == f"say {MASK}"


def test_last_tokens_of_a_restarted_server_are_masked() -> None:
    """Only its most recent tokens are kept, so that hourly tokens do not slow down logging."""
    redactor = Redactor()
    redactor.add(["of-the-configuration"])
    for n in range(1000):
        redactor.add([f"token-number-{n}"], of="restless")
    for _ in range(200):
        redactor.add(["token-number-999"], of="restless")  # like after a crash
    text = "token-number-999 token-number-950 of-the-configuration"
    assert redactor.mask(text) == " ".join([MASK] * 3)
    assert redactor.mask("token-number-1") == "token-number-1"


def test_form_of_two_secrets_is_masked_until_both_are_forgotten() -> None:
    redactor = Redactor()
    redactor.add_tokens(["p@ssword"], of="one")
    redactor.add_tokens(["p%40ssword"], of="two")
    redactor.forget_tokens("one")
    assert redactor.mask("p@ssword") == MASK
    redactor.forget_tokens("two")
    assert redactor.mask("p@ssword") == "p@ssword"


# ── tokens of logins ────────────────────────────────────────────────────────────────────────────


def a_token(length: int) -> str:
    return secrets.token_urlsafe(length)[:length]


def test_the_current_and_the_previous_tokens_of_a_login_are_masked() -> None:
    """Older ones are not valid any more; another login may have the same."""
    redactor = Redactor()
    tokens = [a_token(100) for _ in range(4)]
    redactor.add_tokens([tokens[0]], of="other")
    for token in tokens:
        redactor.add_tokens([token], of="login")
        redactor.add_tokens([token], of="login")
    assert [redactor.mask(token) == MASK for token in tokens] == [True, False, True, True]
    redactor.forget_tokens("login")
    assert [redactor.mask(token) == MASK for token in tokens] == [True, False, False, False]
    redactor.forget_tokens("other")
    assert [redactor.mask(token) == MASK for token in tokens] == [False] * 4
    redactor.forget_tokens("unknown")
