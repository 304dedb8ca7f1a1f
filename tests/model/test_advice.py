"""What messages about a server advise."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mcpd.model import advice

TEXTS: list[tuple[Callable[[str], str], str, str]] = [
    (
        lambda name: advice.to_retry(name, retries=True),
        "see `mcpctl status b`, or run `mcpctl reconnect b` to retry now",
        "mcpd will try again",
    ),
    (
        lambda name: advice.to_retry(name, retries=False),
        "see `mcpctl status b`, or run `mcpctl reconnect b` to retry now",
        "connect again when the cause is fixed",
    ),
    (
        lambda name: advice.to_fix(name),
        "fix its definition, or run `mcpctl reconnect b`",
        "fix its definition",
    ),
    (lambda name: advice.to_enable(name, "connect"), "run `mcpctl connect b`", "enable it"),
    (advice.to_explain, "see `mcpctl why b`", ""),
    (
        lambda name: advice.to_log_in(name),
        "run `mcpctl login b`, or add an `Authorization` header to its definition",
        "add the server to mcpd, with a login or an `Authorization` header",
    ),
    (
        lambda name: advice.to_log_in_again(name, "it has expired"),
        "it has expired; run `mcpctl login b` to log in again",
        "it has expired",
    ),
    (
        lambda name: advice.to_log_in_again(name, ""),
        "run `mcpctl login b` to log in again",
        "the server has refused the login",
    ),
    (
        lambda name: advice.to_list(name, "list-tools", [SimpleNamespace(name=f"t{n}") for n in range(12)]),
        "`mcpctl list-tools b` lists them",
        "it has t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, and 2 more",
    ),
    (lambda name: advice.to_list(name, "prompts", []), "`mcpctl prompts b` lists them", "it has none"),
]


@pytest.mark.parametrize(("make", "usual", "of_try"), TEXTS)
def test_commands_are_advised_unless_no_other_command_knows_the_server(
    make: Callable[[str], str], usual: str, of_try: str
) -> None:
    assert make("b") == usual
    assert make(advice.temporary_name(7)) == of_try
    assert advice.without_name("try-7: add@try-7 of try-7 failed", "try-7") == "add of the server failed"
