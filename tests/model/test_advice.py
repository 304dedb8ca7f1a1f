"""What messages about a server advise."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from mcpd.model import advice

TEXTS: list[tuple[Callable[[], str], str, str]] = [
    (
        lambda: advice.to_retry("b", retries=True),
        "see `mcpctl status b`, or run `mcpctl reconnect b` to retry now",
        "mcpd will try again",
    ),
    (
        lambda: advice.to_retry("b", retries=False),
        "see `mcpctl status b`, or run `mcpctl reconnect b` to retry now",
        "connect again when the cause is fixed",
    ),
    (lambda: advice.to_fix("b"), "fix its definition, or run `mcpctl reconnect b`", "fix its definition"),
    (lambda: advice.to_enable("b", "connect"), "run `mcpctl connect b`", "enable it"),
    (lambda: advice.to_explain("b"), "see `mcpctl why b`", ""),
    (
        lambda: advice.to_log_in("b"),
        "run `mcpctl login b`, or add an `Authorization` header to its definition",
        "add an `Authorization` header to its definition",
    ),
    (
        lambda: advice.to_log_in_again("b", "it has expired"),
        "it has expired; run `mcpctl login b` to log in again",
        "it has expired",
    ),
    (
        lambda: advice.to_log_in_again("b", ""),
        "run `mcpctl login b` to log in again",
        "the server has refused the login",
    ),
    (
        lambda: advice.to_list("b", "list-tools", [SimpleNamespace(name=f"t{n}") for n in range(12)]),
        "`mcpctl list-tools b` lists them",
        "it has t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, and 2 more",
    ),
    (lambda: advice.to_list("b", "prompts", []), "`mcpctl prompts b` lists them", "it has none"),
]


@pytest.mark.parametrize(("make", "usual", "of_one_program"), TEXTS)
def test_commands_are_advised_unless_the_daemon_serves_one_program(
    make: Callable[[], str], usual: str, of_one_program: str
) -> None:
    assert make() == usual
    assert advice.to_enable(advice.temporary_name(7), "connect") == "enable it"
    assert advice.without_name("try-7: add@try-7 of try-7 failed", "try-7") == "add of the server failed"
    assert advice.to_log_in(advice.temporary_name(7)).startswith("add the server to mcpd")
    advice.serve_one_program()
    try:
        assert make() == of_one_program
    finally:
        advice.serve_one_program(False)
