"""Secrets are masked by value, anywhere in a text."""

from __future__ import annotations

import json
import re
import secrets
import time
import tracemalloc
from collections.abc import Callable
from urllib.parse import quote

import pytest

from mcpd.model.text import shorten
from mcpd.support.redact import MASK, Redactor
from tests.spelled import SHOWN
from tests.stopwatch import within


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


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_secret_is_masked_however_often_it_is_escaped(show: Callable[[str], str], ascii_only: bool) -> None:
    """Inside JSON, which stays valid, and with what surrounds the secret unchanged."""
    redactor = Redactor()
    redactor.add([SECRET + "\n😀"])
    text = 'a "quoted" \\ ' + show(SECRET + "\n😀") + " \\ ä"
    for level in range(1, 6):
        text = json.dumps(text, ensure_ascii=ascii_only)
        shown = redactor.mask(text)
        for _ in range(level):
            shown = json.loads(shown)
        assert MASK in shown
        assert shown.startswith('a "quoted" \\ ')
        assert shown.endswith(" \\ ä")
        assert len(shown.replace(MASK, "")) < 50


def test_other_escapes_are_kept() -> None:
    redactor = Redactor()
    redactor.add(["s3cret-token"])
    text = r'\\ \\\" \u00e4\n\x00 \ "s3cret-token\\n" \\'
    assert redactor.mask(text) == text.replace("s3cret-token", MASK)


def test_lines_of_a_secret_are_masked_in_every_spelling() -> None:
    lines = [f"{n:02}-line-of-a-private-key/{'k' * 30}" for n in range(300)]
    redactor = Redactor()
    redactor.add(["\n".join(lines)])
    assert redactor.mask(f"{lines[7]} {lines[250]}") == f"{MASK} {MASK}"
    assert redactor.mask(quote(lines[7], safe="")) == MASK


def test_secret_in_a_url_within_a_url_is_masked() -> None:
    redactor = Redactor()
    redactor.add(["hunter2 Pa$$/w0rd"])
    for safe in ("/", ""):
        assert redactor.mask(f"https://h/?to={quote(quote('hunter2 Pa$$/w0rd', safe=safe))}") == (
            f"https://h/?to={MASK}"
        )


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


def test_masking_takes_time_in_proportion_to_the_text() -> None:
    """Counted in candidates, each of which takes the same time however many secrets there are."""
    redactor = Redactor()
    redactor.add([f"sk-live-{n:04}-{'x' * 30}" for n in range(1000)])
    index = redactor._index
    assert max(map(len, index._lengths.values())) <= 4
    text = "sk-liv" * 10_000
    assert redactor.mask(text) == text
    assert len(re.findall(f"(?={index._candidate.pattern})", text)) <= len(text)


def test_adding_secrets_spells_only_the_new_ones() -> None:
    """And the regular expression has a fixed number of parts, so that it is compiled quickly."""
    secrets = [f"{SECRET}-{n}-{'z' * 40}" for n in range(100)]
    redactor = Redactor()
    redactor.add(secrets)
    assert len(redactor._index._candidate.pattern) < 6 * 2 * 128
    known, index = len(redactor._index._spellings), redactor._index
    redactor.add(secrets)
    assert len(index._spellings) == known < 100 * 100
    assert redactor._index is index


def test_secrets_of_several_servers_stay_masked_until_none_uses_them() -> None:
    redactor = Redactor()
    redactor.add(["shared-by-two-servers"], of="one")
    redactor.add(["shared-by-two-servers"], of="two")
    for n in range(1000):
        redactor.add([f"token-number-{n}"], of="one")
    assert redactor.mask("shared-by-two-servers") == MASK


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
    assert len(redactor._index._spellings) < 8000
    text = "token-number-1099 token-number-1050 of-the-configuration of-another-server"
    assert redactor.mask(text) == " ".join([MASK] * 4)
    assert redactor.mask("token-number-1") == "token-number-1"


# ── tokens of logins ────────────────────────────────────────────────────────────────────────────


def a_token(length: int) -> str:
    return secrets.token_urlsafe(length)[:length]


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("length", [20, 33, 300, 3000])
def test_a_token_is_masked_to_its_end_in_every_spelling(show: Callable[[str], str], length: int) -> None:
    """Only the start of a long token is stored, in every spelling."""
    redactor = Redactor()
    token = a_token(length)
    redactor.add_tokens([token], of="login")
    shown = redactor.mask(f"it said: {show(token)}!")
    assert MASK in shown
    assert len(shown.replace(MASK, "")) < 40
    assert redactor.mask_cut(f"it said {token[:20]}") == f"it said {MASK}"
    assert (
        redactor.mask(f'{{"access_token":"{token}","next":"a"}}') == f'{{"access_token":"{MASK}","next":"a"}}'
    )


def test_a_token_with_unusual_characters_is_masked_as_a_whole() -> None:
    redactor = Redactor()
    token = "start-of-the-token-0123456789-0123456789,and|the(rest)"
    redactor.add_tokens([token], of="login")
    assert redactor.mask(f"<{token}>") == f"<{MASK}>"


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


def test_a_new_token_does_not_stall_the_event_loop() -> None:
    """Also with a hundred logins that are renewed again and again, with long tokens."""
    redactor = Redactor()
    redactor.add([a_token(60) for _ in range(100)])
    times = []
    for _ in range(20):
        for login in range(100):
            pair = [a_token(3000), a_token(1500)]
            began = time.thread_time()
            redactor.add_tokens(pair, of=str(login))
            times.append(time.thread_time() - began)
    assert within(sorted(times)[len(times) * 99 // 100], 0.005)
    text = "x" * 100_000
    began = time.thread_time()
    redactor.mask(text)
    assert within(time.thread_time() - began, 1)


def test_a_hundred_logins_take_little_memory_to_mask() -> None:
    """At most 1.2 kB for each, with two generations of two tokens in every spelling."""
    redactor = Redactor()
    redactor.add_tokens([a_token(100)], of="first")
    pairs = [[a_token(1500), a_token(200)] for _ in range(200)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, pair in enumerate(pairs):
            redactor.add_tokens(pair, of=str(number % 100))
        assert tracemalloc.get_traced_memory()[0] - before < 120_000
    finally:
        tracemalloc.stop()
    assert all(redactor.mask(token) == MASK for pair in pairs for token in pair)
    for number in range(100):
        redactor.forget_tokens(str(number))
    assert not any(redactor.mask(token) == MASK for pair in pairs for token in pair)


def test_tokens_with_the_same_start_are_masked_until_the_last_is_forgotten() -> None:
    redactor = Redactor()
    redactor.add_tokens(["shared-start-of-two-tokens-1"], of="one")
    redactor.add_tokens(["shared-start-of-two-tokens-2", "shared-start-of-two-tokens-3"], of="two")
    redactor.forget_tokens("one")
    assert redactor.mask("shared-start-of-two-tokens-2") == MASK
    redactor.forget_tokens("two")
    assert redactor.mask("shared-start-of-two-tokens-2") != MASK
