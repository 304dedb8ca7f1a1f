"""Runs Python code that calls tools, in a process without files, network and modules (extra `code`).

The sandbox is Monty, an interpreter of a part of Python. What the code calls and does not define is returned
to the caller of this class, which answers it and continues the code.
"""

from __future__ import annotations

import json
import keyword
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import attrs
import msgspec

if TYPE_CHECKING:
    import ast

    import pydantic_monty as monty

MAX_CODE = 32 * 1024
"""Characters: Python's parser stops all threads for some 50 ms with them."""
MAX_SECONDS, MAX_MEMORY, MAX_OUTPUT, MAX_CALLS = 10.0, 128 << 20, 64 * 1024, 200
"""Of one run: seconds in which the code itself runs, bytes of its memory and its output, and its calls."""
_WATCHDOG = 15.0
"""Seconds after which a sandbox that does not keep to its limits is killed."""
_MAX_MISTAKES = 10
_MAX_SUSPENSIONS = 5 * MAX_CALLS
_TYPES = {"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)}
"""The types of constants that an argument of a simple type can have."""

_starting = threading.Lock()
"""It looks for its program by means of `sysconfig`, whose first use must not happen in two threads."""


def is_installed() -> bool:
    return find_spec("pydantic_monty") is not None


class CodeFailed(Exception):
    """The code is invalid, raised an exception, or exceeded a limit; the message is for its author."""


@attrs.frozen
class FunctionCall:
    id: int
    function: str
    arguments: Mapping[str, object]


Step = tuple[FunctionCall, ...] | str
"""The calls that the code waits for, or its output, after which it has ended."""


class CodeSandbox:
    """One run of some code. All methods block. The caller closes it."""

    def __init__(self) -> None:
        import pydantic_monty  # takes 50 ms, and is not installed by default

        self._monty = pydantic_monty
        self._process = ExitStack()
        self._printed = pydantic_monty.CollectString(MAX_OUTPUT)
        self._snapshot: monty.SyncSnapshot
        self._functions: Collection[str] = ()
        self._is_async = False
        self._calls = 0

    def close(self) -> None:
        """End the process. Raises CodeFailed."""
        with self._failures():
            self._process.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise CodeFailed instead of what the library raises. If it panics, that is no `Exception`."""
        try:
            yield
        except self._monty.MontyError as error:
            display = getattr(error, "display", None)
            raise CodeFailed(str(display()) if callable(display) else str(error)) from None
        except BaseException as error:
            if type(error).__name__ == "PanicException":
                raise CodeFailed(f"the sandbox failed: {error}") from None
            raise

    def start(self, code: str, functions: Mapping[str, Mapping[str, object]]) -> Step:
        """Check the code, and run it up to its first calls. `functions`: names and JSON Schemas of their
        arguments. If the code contains `await`, calls that it does not await at once run together.

        Raises CodeFailed. Nothing was called then.
        """
        import ast  # the daemon does without it until then

        if len(code) > MAX_CODE:
            raise CodeFailed(f"the code has {len(code)} characters; at most {MAX_CODE} are accepted")
        try:
            nodes = list(ast.walk(ast.parse(code)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CodeFailed(f"the code is not valid Python: {error}") from None
        self._is_async = any(isinstance(each, ast.Await) for each in nodes)
        self._functions = functions.keys()
        mistakes = [
            mistake
            for each in nodes
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in functions
            for mistake in _mistakes(each, each.func.id, functions[each.func.id])
        ]
        if mistakes:
            raise CodeFailed("; ".join(mistakes[:_MAX_MISTAKES]))
        limits: monty.ResourceLimits = {
            "max_memory": MAX_MEMORY,
            "max_feed_duration_secs": MAX_SECONDS,
            "max_suspensions": _MAX_SUSPENSIONS,
        }
        with self._failures():
            with _starting:
                pool = self._monty.Monty(min_processes=1, max_processes=1, request_timeout=_WATCHDOG)
            session = self._process.enter_context(self._process.enter_context(pool).checkout(limits=limits))
            self._snapshot = session.feed_start(code, print_callback=self._printed)
            return self._next_step()

    def resume(self, results: Mapping[int, object]) -> Step:
        """Answer the calls, by id. An exception is raised in the code. Raises CodeFailed."""
        answers = {
            key: {"exception": RuntimeError(str(each))}
            if isinstance(each, Exception)
            else {"return_value": each}
            for key, each in results.items()
        }
        with self._failures():
            if isinstance(self._snapshot, self._monty.FutureSnapshot):
                self._snapshot = self._snapshot.resume(answers)  # type: ignore[arg-type]
            else:
                assert isinstance(self._snapshot, self._monty.FunctionSnapshot)
                self._snapshot = self._snapshot.resume(next(iter(answers.values())))  # type: ignore[arg-type]
            return self._next_step()

    def _next_step(self) -> Step:
        waiting: dict[int, FunctionCall] = {}
        while True:
            now = self._snapshot
            if isinstance(now, self._monty.MontyComplete):
                return self._output(now.output)
            if isinstance(now, self._monty.NameLookupSnapshot):
                self._snapshot = now.resume()
            elif isinstance(now, self._monty.FutureSnapshot):
                return tuple(waiting[key] for key in sorted(now.pending_call_ids))
            elif now.is_os_function:
                self._snapshot = now.resume_not_handled()
            else:
                call = self._call(now)
                if isinstance(call, TypeError):
                    self._snapshot = now.resume({"exception": call})
                elif self._is_async:
                    waiting[call.id] = call
                    self._snapshot = now.resume({"future": ...})
                else:
                    return (call,)

    def _call(self, now: monty.FunctionSnapshot) -> FunctionCall | TypeError:
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise CodeFailed(f"the code made more than {MAX_CALLS} calls; the earlier ones have run")
        if now.args and now.function_name in self._functions:
            return TypeError(f"{now.function_name}() takes keyword arguments only")
        try:
            msgspec.json.encode(now.kwargs)
        except (TypeError, ValueError, RecursionError) as error:
            return TypeError(f"the arguments of {now.function_name}() are not JSON: {error}")
        return FunctionCall(now.call_id, str(now.function_name), now.kwargs)

    def _output(self, value: object) -> str:
        """Return what the code has printed, and the value of its last expression."""
        printed = self._printed.output
        if value is None:
            return printed
        try:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            shown = repr(value)
        if len(shown) > MAX_OUTPUT:
            raise CodeFailed(
                f"the result has {len(shown)} characters; at most {MAX_OUTPUT} are accepted: return less"
            )
        return printed + shown


def function_name(tool: str) -> str:
    """Return the name by which code calls a tool: with `_` for what no identifier can contain."""
    if tool.isascii() and tool.isidentifier() and not keyword.iskeyword(tool):
        return tool
    name = re.sub(r"\W", "_", tool, flags=re.ASCII)
    return f"_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name


def value_in_code(text: str, structured: object) -> object:
    """Return what a call returns in the code: structured content, or parsed JSON, or text. What some servers
    wrap as `{"result": …}` is unwrapped."""
    if structured is not None:
        is_wrapped = isinstance(structured, dict) and structured.keys() == {"result"}
        return structured["result"] if is_wrapped else structured  # type: ignore[index]
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _mistakes(call: ast.Call, name: str, schema: Mapping[str, object]) -> Iterator[str]:
    """Find what of a call is wrong by the schema of its arguments, as far as it is known before it runs."""
    shapes, required = schema.get("properties"), schema.get("required")
    shapes = shapes if isinstance(shapes, dict) else {}
    given = {each.arg: each.value for each in call.keywords}
    where = f"line {call.lineno}: {name}()"
    if call.args:
        yield f"{where} takes keyword arguments only"
    elif None not in given:  # otherwise `**more` may contain any
        missing = [each for each in required if each not in given] if isinstance(required, list) else []
        yield from (f"{where} misses the argument {each!r}" for each in missing)
        if schema.get("additionalProperties") is False:
            yield from (f"{where} has no argument {each!r}" for each in given if each not in shapes)
    for key, value in given.items():
        shape = shapes.get(key)
        kind = shape.get("type") if isinstance(shape, dict) else None
        types = _TYPES.get(kind) if isinstance(kind, str) else None
        constant = getattr(value, "value", None) if type(value).__name__ == "Constant" else None
        if types is not None and constant is not None and type(constant) not in types:
            yield f"{where}: {key} must be of type {kind}, not {constant!r:.40}"
