"""The process that checks values against expensive schemas: its limits, its failures and its end."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from mcpd.calls import schema_checker as module
from mcpd.calls.schema_checker import CheckResult, schema_checker
from tests.processes import gone, state, wait_until

Json = dict[str, Any]
SERVER = "s"
LARGE = "[\\p{L}\\p{N}]{180}"
"""A pattern of 18 MB."""
TWICE = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
DOUBLING: Json = {"$ref": "#/$defs/d0", "$defs": {**TWICE, "d40": {"type": "string"}}}
SLOW: Json = {"items": {"allOf": [{"pattern": f"(?=.*x)((?=.*{n})a|b)*c"} for n in range(200)]}}
SLOW_VALUE = ["ab" * 16_000] * 30


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer than the daemon does, because tests also run on a busy machine."""
    monkeypatch.setattr(module, "_WAIT_SECONDS", 60.0)
    monkeypatch.setattr(module, "_CHECK_SECONDS", 60.0)
    monkeypatch.setattr(module, "_SLOW_SECONDS", 60.0)


async def check(schema: object, value: object = "a", server: str = SERVER) -> CheckResult:
    source = json.dumps(schema).encode()
    data = json.dumps(value).encode()
    digest = hashlib.blake2b(source, digest_size=16).digest()
    return await schema_checker(server).check(server, digest, source, data)


def pid() -> int:
    found = schema_checker(SERVER).pid
    assert found is not None
    return found


async def test_values_are_checked_with_the_paths_of_their_problems() -> None:
    """One process answers all checks, and compiles each schema once."""
    schema = {"properties": {"a": {"items": {"type": "integer"}}}, "required": ["b"]}
    assert schema_checker(SERVER).pid is None
    assert await check(schema) == CheckResult()
    first = pid()
    assert await check(schema, {"b": 1}) == CheckResult()
    answer = await check(schema, {"a": [1, "x"]})
    assert dict(answer.problems) == {
        ".a[1]": '"x" is not of type "integer"',
        "": '"b" is a required property',
    }
    assert await check({"type": "string"}, 5) == CheckResult((("", '5 is not of type "string"'),))
    assert pid() == first


async def test_number_and_length_of_problems_are_limited() -> None:
    """In a large value, only the first problem is sought."""
    assert len((await check({"items": False}, [1] * 100)).problems) == 10
    assert len((await check({"items": False}, [1] * 1000)).problems) == 1
    ((path, message),) = (
        await check({"additionalProperties": {"type": "integer"}}, {"x" * 2000: "y" * 2000})
    ).problems
    assert (len(path), len(message)) == (1000, 1000)


@pytest.mark.parametrize(
    ("schema", "failure"),
    [
        ({"type": 5}, "5 is not valid"),
        ({"pattern": "("}, "is not a"),
        ({"$ref": "file:///etc/passwd"}, "does not fetch"),
        ({"$ref": "http://127.0.0.1:1/x"}, "does not fetch"),
        ({"$id": "http://127.0.0.1:1/x", "$ref": "other.json"}, "does not fetch"),
        ({"$schema": "http://127.0.0.1:1/x"}, "Unknown meta-schema"),
        ([], "Expected"),
        (5, "Expected"),
    ],
)
async def test_invalid_schema_is_refused_for_good(schema: object, failure: str) -> None:
    answer = await check(schema)
    assert failure in answer.failure
    assert await check(schema, 5) == answer


async def test_compiling_is_limited_in_memory() -> None:
    """The attack: 250 patterns of 10 to 18 MB in 12 KB. Other schemas are checked afterwards."""
    answer = await check({"allOf": [{"pattern": f"{LARGE}{n}"} for n in range(250)]})
    assert answer == CheckResult(failure="compiling it took more than 100 MiB of memory")
    assert await check({"pattern": LARGE}, "x") == CheckResult((("", f'"x" does not match "{LARGE}"'),))


async def test_compiling_is_limited_in_cpu_time() -> None:
    """Many patterns that are dropped again take time without memory."""
    answer = await check({"allOf": [{"pattern": "\\s" * 90 + f"[{n}\\s\\S]"} for n in range(3000)]})
    assert "compiling it took more than" in answer.failure


@pytest.mark.parametrize(("schema", "value"), [(DOUBLING, 1), (SLOW, SLOW_VALUE)], ids=["doubling", "slow"])
async def test_checking_is_limited_and_then_refused(schema: Json, value: object) -> None:
    """What takes years once will take years again."""
    answer = await check(schema, value)
    assert answer.failure.startswith("checking a value against it took more than")
    assert await check(schema, "a") == answer
    assert schema_checker(SERVER).pid is None, "nothing was started for it"


async def test_another_schema_that_used_up_the_memory_is_not_blamed() -> None:
    """Schemas that fit one by one, but not together, are all checked."""
    for number in range(10):
        schema = {"pattern": f"{LARGE}{number}"}
        assert len((await check(schema, "x")).problems) == 1, number
    assert await check({"pattern": f"{LARGE}0"}, "x" * 180 + "0") == CheckResult()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_process_that_was_killed_is_replaced(number: int) -> None:
    """No schema is blamed for it."""
    assert await check({"type": "string"}, "x") == CheckResult()
    first = pid()
    os.kill(first, number)
    await trio.to_thread.run_sync(wait_until, lambda: gone(first))
    await check({"type": "string"}, "x")
    assert await check({"type": "string"}, "x") == CheckResult()
    assert pid() != first


async def test_process_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await check({}, 1) == CheckResult()
    first = pid()
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(module, "_CHECK_SECONDS", 0.1)
    answer = await check({}, 1)
    assert answer == CheckResult(failure="it took more than 0.1 s")
    assert gone(first)
    monkeypatch.setattr(module, "_CHECK_SECONDS", 60.0)
    assert await check({}, 1) == CheckResult()


async def test_process_that_cannot_be_started_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert "FileNotFoundError" in (await check({}, 1)).failure
    monkeypatch.undo()
    monkeypatch.setattr(module, "_PROGRAM", "raise SystemExit(3)")
    assert await check({}, 1) == CheckResult(failure="the process that checks ended (status 3)")


async def test_waiting_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """In time and in number; nobody waits for an expensive check of another server for long."""
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(module, "_MAX_WAITING", 3)
    assert await check({}) == CheckResult()
    os.kill(pid(), signal.SIGSTOP)
    answers: list[CheckResult] = []

    async def one() -> None:
        answers.append(await check({}, 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(5):
            nursery.start_soon(one)
        await trio.to_thread.run_sync(wait_until, lambda: len(answers) == 5)
        os.kill(pid(), signal.SIGCONT)
    assert sorted(answer.failure for answer in answers) == [
        "",
        *["3 other checks are waiting"] * 2,
        *["other checks took more than 0.05 s"] * 3,
    ]


async def test_slow_checks_of_one_server_do_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await check({}, 1, "calm") == CheckResult()
    monkeypatch.setattr(module, "_SLOW_SECONDS", 0.0)
    await check({}, 1, "slow")
    monkeypatch.setattr(module, "_SLOW_SECONDS", 60.0)
    assert await check({}, 1, "slow") == CheckResult()
    process = schema_checker("slow").pid
    assert process is not None
    assert process != schema_checker("calm").pid
    os.kill(process, signal.SIGSTOP)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check, {}, 1, "slow")
        await trio.testing.wait_all_tasks_blocked()
        assert await check({}, 1, "calm") == CheckResult()
        os.kill(process, signal.SIGCONT)


async def test_cancelled_check_leaves_the_process_usable() -> None:
    assert await check({}) == CheckResult()
    first = pid()
    os.kill(first, signal.SIGSTOP)
    with trio.move_on_after(0.05) as scope:
        await check({}, 1)
    assert scope.cancelled_caught
    os.kill(first, signal.SIGCONT)
    assert await check({}, 1) == CheckResult()
    assert pid() == first


async def test_idle_process_is_ended_and_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """And started again for the next check."""
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.01)
    assert await check({}, 1) == CheckResult()
    checker = schema_checker(SERVER)
    await trio.to_thread.run_sync(wait_until, lambda: checker.pid is None)
    assert await check({}, 1) == CheckResult()


BUSY = """
import sys, trio
from mcpd.calls import schema_checker as module
from tests.calls import test_schema_checker as tests

async def main():
    imports, _, main = module._PROGRAM.rpartition("; ")
    module._PROGRAM = f"{imports}; schema_checker_process.CPU_SECONDS = 600; {main}"
    module._CHECK_SECONDS = 600
    await tests.check(tests.SLOW)
    print(tests.pid(), flush=True)
    await tests.check(tests.SLOW, tests.SLOW_VALUE)

trio.run(main)
"""


def test_death_of_the_daemon_ends_the_process_in_the_middle_of_a_check() -> None:
    """The kernel ends it: the process itself would notice only after the check, which has no limit here."""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, cwd=root) as daemon:
        assert daemon.stdout is not None
        checking = int(daemon.stdout.readline())
        wait_until(lambda: state(checking) == "R")
        daemon.kill()
    wait_until(lambda: gone(checking))
