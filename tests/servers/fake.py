"""A scripted MCP server over stdio that misbehaves exactly as received: the fault injector of our tests.

    python -I -S fake.py [flags]        standard library only, one file, nothing to install

Without flags it is a well-behaved server of both eras. What it does wrong comes from flags, from
actions bound to a moment (`--at`), or, in the middle of a session, from calling the tool of that name.
It ends by itself after `--max-life` seconds, whatever it was told to ignore.

Flags
  --era both|legacy|modern    what it speaks (default both)
  --versions V,V              legacy revisions it knows (default all), newest first
  --never-init                never answer initialize (nor server/discover)
  --drop METHOD,METHOD        never answer these (e.g. ping, tools/list)
  --refuse METHOD=CODE,…      answer these with an error
  --delay METHOD=S,…          answer these after S seconds; later messages are answered meanwhile
  --capabilities A,B          of tools, resources, prompts, logging, completions, tasks (default: tools)
  --subscribable              notify subscribers when a resource changes (by `notify`)
  --deny-subscribable         and declares that it does not, as every server on the Python SDK 1.x
  --tools N                   N more tools, tool-00001 …
  --bad-tools                 seven unusable entries among the tools, and one with escapes in its description
  --ignore-eof, --ignore-term survive the end of stdin; SIGTERM and SIGINT
  --wrapper                   run as `sh -c 'server & wait'`, as npx does; the shell keeps our pid
  --record FILE               add every message to FILE: `in` or `out`, a space, and the message
  --max-life S                end by SIGALRM after S seconds (default 1200)
  --at WHEN ACTION [JSON]     WHEN: start (before anything is read), init (before the handshake is
                              answered), ready (right after), call (before each tools/call is served),
                              call:N (before the Nth), eof, term

Actions, which are tools too: their arguments are the JSON object
  die {how=1}                 exit with that status, or by that signal ("KILL"; "STOP" wedges it)
  stderr {lines=1, mb=0, binary=false, text}   lines, then mb MiB without any newline
  junk {lines=1, kinds}       no messages, on stdout; kinds of banner blank text crlf bom nul bin
  block {seconds=1, busy=false}  neither reads nor writes for so long
  spawn {setsid=true, deaf=true} a grandchild: of its own session, deaf to TERM; holds our stdout and stderr
  close {what="stdout"}       closes stdout, or stdin, or stderr, and keeps running
  stop_reading {}             reads no more, and lives on
  notify {method, count=1, params}  so many notifications at once (default: list_changed of tools)
  change {}                   one more tool in the list, announced
  ask {method, params, rounds=1}  a request to the client (ping, roots/list, sampling/createMessage, …);
                              as a tool, its result is the client's answer; to a modern client it
                              answers `input_required`, that many times
  raw {text, hex}             these bytes on stdout, as they are

Tools besides
  echo {…}                    its arguments, as JSON text
  env, argv, cwd, pid         what this process was given (pid: also ppid, pgid and sid, structured)
  meta                        the `_meta` it was called with; the result has the same, unreserved names only
  counts                      what it has seen: a number for each method, cancelled ids, answers to `ask`
  exact                       a result of which every byte matters: see EXACT
  big {bytes, mb}             a text so long
  endless {mb=64}             that much of a line that never ends
  deep {depth=100000}         a result nested so deeply
  odd {kind}                  a right answer, oddly written: surrogate utf8 u2028 crlf bom nul twice
                              batch unversioned pieces stringid
  drop                        never answered
  log {level, data}           a log message of that level, if the caller wants log messages at all
  late {seconds=1}            answered then, cancelled or not
  too_late                    answered when it is cancelled, so that the two cross
  progress {total=1, every=0.1, more={}}  progress at that pace, then the answer; stops when cancelled
  job {seconds=0.3, ends="completed", poll=100, words}  a task that comes to that end: completed, failed,
                              cancelled, or input_required; a tool only if the server has tasks
  wants {message}             asks the user first (2026-07-28; before, done at once)
  typed {n, answer}           its schemas want an integer n, but it checks nothing; the structured result is
                              the answer, else the arguments
  fail {message}              a result with isError
  error {code=-32000, message, data}  a JSON-RPC error
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Json = dict[str, Any]

LEGACY = "2025-11-25,2025-06-18,2025-03-26,2024-11-05"
MODERN_VERSIONS = ["2026-07-28"]
RESERVED = "io.modelcontextprotocol/"
TASKS = f"{RESERVED}tasks"
EXACT = (
    '{"content": [{"type":"text","text":"\\u0065x\\/act \\ud83d\\ude00"}],  "z":1,"structuredContent":'
    '{"big":1180591620717411303424,"price":1.10,"twice":1,"a":-0.0,"twice":2,"exp":1E+400,"tiny":1e-7},'
    '"isError" : false}'
)
"""A big integer, trailing zeros, a duplicate key, odd spacing, escapes nobody needs: none may change."""
SHAPED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
BAD_TOOLS: list[object] = [
    None,
    3,
    [],
    {},
    {"name": 5, "inputSchema": {"type": "object"}},
    {"name": "", "inputSchema": {"type": "object"}},
    {"name": "bad-schema", "inputSchema": "object"},
    {
        "name": "escapes",
        "description": "\x1b]0;owned\x07\x1b[2J\u202e[bold]",
        "inputSchema": {"type": "object"},
    },
]
JUNK = {
    "banner": b"  ___ Welcome to Fake Server v1.0! ___",
    "blank": b"",
    "text": b"INFO 12:00:00 listening {not json}",
    "crlf": b"a line from elsewhere\r",
    "bom": b"\xef\xbb\xbf",
    "nul": b"\x00\x00\x00",
    "bin": bytes(range(128, 256)),
}


class Stop(Exception):
    """Nothing more to do with this message."""


class Fake:
    """The server's state: what it was received, and what it has seen."""

    def __init__(self, received: argparse.Namespace) -> None:
        self.received = received
        self.lock = threading.Lock()
        self.reading = True
        self.modern = False  # how the peer spoke last
        self.version = "2024-11-05"
        self.seen: Counter[str] = Counter()
        self.cancelled: list[object] = []
        self.answered_too_late: dict[int, Json] = {}
        self.answers: list[Json] = []
        self.waiting: dict[str, Callable[[Json], None]] = {}
        self.subscriptions: list[object] = []
        self.jobs: dict[str, Json] = {}
        self.extra_tools = 0
        self.end = b"\n"

    # -- bytes ---------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """All of it, even if stdout is full; a closed stdout is survived."""
        with self.lock:
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(1, view) :]
            except BrokenPipeError:
                if not self.received.ignore_eof:
                    os._exit(0)
            except OSError:
                pass  # closed by ourselves

    def send(self, message: object) -> None:
        line = json.dumps(message).encode()
        self.record(b"out", line)
        self.write(line + self.end)

    def record(self, way: bytes, line: bytes) -> None:
        if self.received.record:
            with self.lock, open(self.received.record, "ab") as file:
                file.write(way + b" " + line + b"\n")

    def reply(self, request: Json, result: object) -> None:
        if self.modern and isinstance(result, dict):
            result = {"resultType": "complete", **result}
        self.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode() + self.end)

    def text(self, request: Json, text: str, **more: object) -> None:
        self.reply(request, {"content": [{"type": "text", "text": text}], "isError": False, **more})

    def error(self, request: Json, code: int, message: str, data: object = None) -> None:
        error: Json = {"code": code, "message": message} | ({} if data is None else {"data": data})
        self.send({"jsonrpc": "2.0", "id": request["id"], "error": error})

    def run(self) -> None:
        """Serve stdin until it ends."""
        self.act("start")
        pending = b""
        while self.reading:
            try:
                chunk = os.read(0, 1 << 16)
            except OSError:
                chunk = b""  # closed by ourselves
            if not chunk:
                break
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if line.strip() and self.reading:
                    self.record(b"in", line)
                    self.hear(json.loads(line))
        if self.reading:
            self.act("eof")
        while self.received.ignore_eof or not self.reading:
            time.sleep(3600)  # signals still come

    # -- messages ------------------------------------------------------------------------------------

    def hear(self, message: Json) -> None:
        method = message.get("method")
        if method is None:
            self.answers.append(message)
            if waiter := self.waiting.pop(str(message.get("id")), None):
                waiter(message)
            return
        self.seen[method] += 1
        if "id" not in message:
            if method == "notifications/cancelled":
                cancelled = message.get("params", {}).get("requestId")
                self.cancelled.append(cancelled)
                if isinstance(cancelled, int) and (late := self.answered_too_late.pop(cancelled, None)):
                    self.text(late, "too late")
            return
        self.modern = f"{RESERVED}protocolVersion" in message.get("params", {}).get("_meta", {})
        if method in self.received.drop or (
            self.received.never_init and method in ("initialize", "server/discover")
        ):
            return
        if method in self.received.delay:
            self.later(self.received.delay[method], lambda: self.serve(method, message))
        else:
            self.serve(method, message)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, what)
        timer.daemon = True
        timer.start()

    def serve(self, method: str, request: Json) -> None:
        if method in self.received.refuse:
            return self.error(request, self.received.refuse[method], f"{method} is refused")
        if method == "server/discover" and self.received.era == "legacy":
            return self.error(request, -32601, "what is that?")
        if self.modern and self.received.era != "legacy":
            asked = request["params"]["_meta"][f"{RESERVED}protocolVersion"]
            if asked not in MODERN_VERSIONS:
                data = {"supported": MODERN_VERSIONS, "requested": asked}
                return self.error(request, -32022, "unsupported version", data)

        def agree(request: Json) -> None:
            self.reply(request, {})

        handler: Callable[[Json], None] | None = {
            "initialize": self.initialize,
            "server/discover": self.discover,
            "subscriptions/listen": self.listen,
            "tasks/get": self.task,
            "tasks/result": self.task,
            "tasks/update": self.task,
            "tasks/cancel": self.task,
            "ping": lambda request: self.reply(request, {}),
            "logging/setLevel": lambda request: self.reply(request, {}),
            **(
                {"resources/subscribe": agree, "resources/unsubscribe": agree}
                if self.received.subscribable
                else {}
            ),
            "tools/list": self.list_tools,
            "tools/call": self.call,
            "resources/list": self.items("resources", {"uri": "fake://one", "name": "one"}),
            "resources/templates/list": self.items(
                "resourceTemplates", {"uriTemplate": "fake://{x}", "name": "x"}
            ),
            "resources/read": lambda request: self.reply(
                request, self.cached({"contents": [{"uri": request["params"]["uri"], "text": "one"}]})
            ),
            "prompts/list": self.items("prompts", {"name": "hello"}),
            "prompts/get": lambda request: self.reply(
                request, {"messages": [{"role": "user", "content": {"type": "text", "text": "hello"}}]}
            ),
            "completion/complete": lambda request: self.reply(request, {"completion": {"values": ["one"]}}),
        }.get(method)
        if handler is None or (self.received.era == "modern" and not self.modern):
            return self.error(request, -32601, f"no method {method}")
        return handler(request)

    def initialize(self, request: Json) -> None:
        self.act("init")
        asked = request["params"]["protocolVersion"]
        known = self.received.versions
        self.version = asked if asked in known else known[0]
        hello = self.hello() | {
            "protocolVersion": self.version,
            "serverInfo": {"name": "fake", "version": "1"},
        }
        self.reply(request, hello)
        self.ready()

    def discover(self, request: Json) -> None:
        self.act("init")
        versions = MODERN_VERSIONS + (self.received.versions if self.received.era == "both" else [])
        identity = {"_meta": {f"{RESERVED}serverInfo": {"name": "fake", "version": "1"}}}
        self.reply(request, self.cached(self.hello() | {"supportedVersions": versions} | identity))
        if self.seen["server/discover"] == 1:  # later ones only ask whether we live
            self.ready()

    def ready(self) -> None:
        self.act("ready")

    def hello(self) -> Json:
        changing = ("tools", "resources", "prompts")
        capabilities: Json = {
            name: {"listChanged": True} if name in changing else {} for name in self.received.capabilities
        }
        if "tasks" in capabilities:
            del capabilities["tasks"]
            capabilities |= (
                {"extensions": {TASKS: {}}}
                if self.modern
                else {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
            )
        if self.received.subscribable:
            subscribe = not self.received.deny_subscribable
            capabilities["resources"] = {"listChanged": True, "subscribe": subscribe}
        return {"capabilities": capabilities}

    def listen(self, request: Json) -> None:
        self.subscriptions.append(request["id"])
        params = {
            "notifications": request["params"].get("notifications", {}),
            "_meta": {f"{RESERVED}subscriptionId": request["id"]},
        }
        self.send({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})

    def cached(self, result: Json) -> Json:
        return result | ({"ttlMs": 0, "cacheScope": "private"} if self.modern else {})

    def items(self, key: str, item: Json) -> Callable[[Json], None]:
        return lambda request: self.reply(request, self.cached({key: [item]}))

    def list_tools(self, request: Json) -> None:
        plain = {"type": "object"}
        tools: list[object] = [{"name": name, "inputSchema": plain} for name in (*ACTIONS, *TOOLS)]
        tools.append({"name": "typed", "inputSchema": SHAPED, "outputSchema": SHAPED})
        if "tasks" in self.received.capabilities:
            tools.append({"name": "job", "inputSchema": plain, "execution": {"taskSupport": "required"}})
        tools += [{"name": f"tool-{n:05}", "inputSchema": plain} for n in range(1, self.received.tools + 1)]
        tools += [{"name": f"extra-{n}", "inputSchema": plain} for n in range(1, self.extra_tools + 1)]
        if self.received.bad_tools:
            for place, bad in enumerate(BAD_TOOLS):
                tools.insert(place * 3, bad)
        self.reply(request, self.cached({"tools": tools}))

    def call(self, request: Json) -> None:
        calls = self.seen["tools/call"]
        self.act("call")
        self.act(f"call:{calls}")
        name = request["params"]["name"]
        arguments = request["params"].get("arguments") or {}
        if name in ACTIONS:
            try:
                ACTIONS[name](self, arguments, request)
            except Stop:
                return
            self.text(request, f"{name}: done")
        elif name in TOOLS:
            TOOLS[name](self, arguments, request)
        elif name == "job":
            self.job(arguments, request)
        elif name == "typed":
            answer = arguments.get("answer", arguments)
            self.text(request, json.dumps(answer), structuredContent=answer)
        elif name.startswith(("tool-", "extra-")):
            self.text(request, name)
        else:
            self.error(request, -32602, f"unknown tool {name}")

    def act(self, when: str) -> None:
        """Do what `--at` bound to this moment."""
        for moment, action, *given in self.received.at:
            if moment == when:
                arguments = given[0] if given else {}
                ACTIONS[action](
                    self, json.loads(arguments) if isinstance(arguments, str) else arguments, None
                )

    # -- actions: (arguments, the call that asked for it, or None) -------------------------------------

    def die(self, given: Json, request: Json | None) -> None:
        how = given.get("how", 1)
        if isinstance(how, int):
            os._exit(how)
        if how not in ("KILL", "STOP"):
            signal.signal(getattr(signal, f"SIG{how}"), signal.SIG_DFL)
        os.kill(os.getpid(), getattr(signal, f"SIG{how}"))

    def stderr(self, given: Json, request: Json | None) -> None:
        text = given.get("text", "line")
        _write_all(2, b"".join(f"{text} {n}\n".encode() for n in range(given.get("lines", 1))))
        block = (
            bytes(range(11, 256)) if given.get("binary") else b"e" * 245
        ) * 4280  # about 1 MiB, no newline
        for _ in range(given.get("mb", 0)):
            _write_all(2, block)

    def junk(self, given: Json, request: Json | None) -> None:
        kinds = given.get("kinds", list(JUNK))
        self.write(b"".join(JUNK[kinds[n % len(kinds)]] + b"\n" for n in range(given.get("lines", 1))))

    def block(self, given: Json, request: Json | None) -> None:
        with self.lock:
            until = time.monotonic() + given.get("seconds", 1)
            while (left := until - time.monotonic()) > 0:
                if not given.get("busy"):
                    time.sleep(left)

    def spawn(self, given: Json, request: Json | None) -> None:
        import subprocess  # it and random cost more time to import than all the rest

        def deafen() -> None:
            for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(one, signal.SIG_IGN)  # which the program it becomes inherits

        child = subprocess.Popen(
            ["sleep", str(self.received.max_life)],
            stdin=subprocess.DEVNULL,
            start_new_session=given.get("setsid", True),
            preexec_fn=deafen if given.get("deaf", True) else None,
        )
        child.returncode = 0  # not ours to wait for: that is the point
        if request is not None:
            self.text(request, str(child.pid))
            raise Stop

    def close(self, given: Json, request: Json | None) -> None:
        os.close({"stdin": 0, "stdout": 1, "stderr": 2}[given.get("what", "stdout")])
        self.received.ignore_eof = True

    def stop_reading(self, given: Json, request: Json | None) -> None:
        self.reading = False

    def notify(self, given: Json, request: Json | None) -> None:
        method = given.get("method", "notifications/tools/list_changed")
        params = given.get("params", {})
        tagged = [params | {"_meta": {f"{RESERVED}subscriptionId": one}} for one in self.subscriptions]
        notes = [{"jsonrpc": "2.0", "method": method, "params": each} for each in tagged or [params]]
        self.write(b"".join(json.dumps(note).encode() + self.end for note in notes) * given.get("count", 1))

    def change(self, given: Json, request: Json | None) -> None:
        self.extra_tools += 1
        self.notify({}, None)

    def ask(self, given: Json, request: Json | None) -> None:
        if request is not None and self.modern:
            self.require(given, request)
            raise Stop
        key = f"fake-{len(self.waiting) + len(self.answers) + 1}"
        if request is not None:
            self.waiting[key] = lambda answer: self.text(request, json.dumps(answer))
        asked: Json = {"jsonrpc": "2.0", "id": key, "method": given.get("method", "ping")}
        self.send(asked | ({"params": given["params"]} if "params" in given else {}))
        if request is not None:
            raise Stop

    def require(self, given: Json, request: Json) -> None:
        """The modern way of asking: in as many rounds as received, each naming the next in its state."""
        params = request["params"]
        state, answers = params.get("requestState"), params.get("inputResponses")
        done = 0 if state is None else int(state.removeprefix("round-"))
        if state is not None and not (answers and "q" in answers):
            return self.error(request, -32602, "no answer to q")
        if done >= given.get("rounds", 1):
            return self.text(request, json.dumps({"result": (answers or {}).get("q"), "state": state}))
        asked = {"method": given.get("method", "elicitation/create"), "params": given.get("params", {})}
        received = {"inputRequests": {"q": asked}, "requestState": f"round-{done + 1}"}
        return self.reply(request, {**received, "resultType": "input_required"})

    def raw(self, given: Json, request: Json | None) -> None:
        self.write(bytes.fromhex(given.get("hex", "")) + given.get("text", "").encode())

    # -- tools: (arguments, the call), each answering for itself ---------------------------------------

    def counts(self, given: Json, request: Json) -> None:
        seen = {"seen": self.seen, "cancelled": self.cancelled, "answers": self.answers}
        self.text(request, json.dumps(seen))

    def meta(self, given: Json, request: Json) -> None:
        came = request["params"].get("_meta", {})
        own = {name: value for name, value in came.items() if "/" not in name and name != "progressToken"}
        self.text(request, json.dumps(came), _meta=own)

    def pid(self, given: Json, request: Json) -> None:
        all_of_it = {"pid": os.getpid(), "ppid": os.getppid(), "pgid": os.getpgid(0), "sid": os.getsid(0)}
        self.text(request, str(os.getpid()), structuredContent=all_of_it)

    def exact(self, given: Json, request: Json) -> None:
        result = EXACT if not self.modern else '{"resultType":"complete",' + EXACT[1:]
        self.write(
            f'{{"jsonrpc":"2.0","id":{json.dumps(request["id"])},"result":{result}}}'.encode() + self.end
        )

    def big(self, given: Json, request: Json) -> None:
        self.text(request, "x" * (given.get("bytes", 0) + (given.get("mb", 0) << 20)))

    def endless(self, given: Json, request: Json) -> None:
        for _ in range(given.get("mb", 64)):
            self.write(b"x" * (1 << 20))

    def deep(self, given: Json, request: Json) -> None:
        depth = given.get("depth", 100_000)
        nested = b"[" * depth + b"]" * depth
        head = f'{{"jsonrpc":"2.0","id":{json.dumps(request["id"])},"result":{{"content":[],"nested":'
        self.write(head.encode() + nested + b"}}" + self.end)

    def odd(self, given: Json, request: Json) -> None:
        kind = given["kind"]
        text = {"surrogate": "lone \ud800 half", "u2028": "a\u2028b\u2029c", "utf8": "cut @ here"}.get(
            kind, kind
        )
        result = {"content": [{"type": "text", "text": text}], "isError": False}
        if self.modern:
            result["resultType"] = "complete"
        answer: Json = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        if kind == "unversioned":
            del answer["jsonrpc"]
        if kind == "stringid":
            answer["id"] = str(request["id"])
        whole: object = [answer] if kind == "batch" else answer
        line = json.dumps(whole, ensure_ascii=kind != "u2028").encode()
        if kind == "utf8":
            line = line.replace(b"@", b"\xff\xc3\x28\xed\xa0\x80")
        line = {"bom": b"\xef\xbb\xbf"}.get(kind, b"") + line + {"crlf": b"\r", "nul": b"\x00"}.get(kind, b"")
        if kind == "pieces":
            for byte in line:
                self.write(bytes([byte]))
            line = b""
        self.write((line + self.end) * (2 if kind == "twice" else 1))

    def wants(self, given: Json, request: Json) -> None:
        answers = request["params"].get("inputResponses")
        if not self.modern or answers is not None:
            return self.text(request, json.dumps(answers))
        schema = {"type": "object", "properties": {"x": {"type": "string"}}}
        asked = {"mode": "form", "message": given.get("message", "which?"), "requestedSchema": schema}
        question = {"q": {"method": "elicitation/create", "params": asked}}
        return self.reply(request, {"resultType": "input_required", "inputRequests": question})

    # -- tasks: of 2025-11-25, and of the extension to 2026-07-28 ---------------------------------------

    def job(self, given: Json, request: Json) -> None:
        params = request["params"]
        if self.modern:
            declared = params["_meta"][f"{RESERVED}clientCapabilities"].get("extensions", {})
            if TASKS not in declared:
                needed: Json = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
                return self.error(request, -32021, "this takes a task", needed)
        elif "task" not in params:
            return self.error(request, -32601, "this takes a task")
        key = f"task-{len(self.jobs) + 1}"
        self.jobs[key] = {**given, "until": time.monotonic() + given.get("seconds", 0.3)}
        if self.modern:
            return self.reply(request, {"resultType": "task", **self.told_of(key)})
        return self.reply(request, {"task": self.told_of(key)})

    def told_of(self, key: str) -> Json:
        job = self.jobs[key]
        over = time.monotonic() >= job["until"]
        status = job.get("ends", "completed") if over else "working"
        at, poll = "2026-01-01T00:00:00Z", job.get("poll", 100)
        times = (
            {"ttlMs": 60_000, "pollIntervalMs": poll} if self.modern else {"ttl": None, "pollInterval": poll}
        )
        received: Json = {"statusMessage": job["words"]} if "words" in job else {}
        received |= {"taskId": key, "status": status, "createdAt": at, "lastUpdatedAt": at, **times}
        if self.modern and status == "completed":
            received["result"] = {"content": [{"type": "text", "text": "the job is done"}]}
        elif self.modern and status == "failed":
            received["error"] = {"code": -32000, "message": "the job failed"}
        elif self.modern and status == "input_required":
            asked = {"message": "how?", "requestedSchema": {"type": "object", "properties": {}}}
            received["inputRequests"] = {"q": {"method": "elicitation/create", "params": asked}}
        return received

    def task(self, request: Json) -> None:
        method, key = request["method"], request["params"]["taskId"]
        if key not in self.jobs:
            return self.error(request, -32602, f"no task {key}")
        if method == "tasks/cancel":
            self.jobs[key] |= {"ends": "cancelled", "until": 0}
            self.seen["tasks cancelled"] += 1
            return self.reply(request, {} if self.modern else self.told_of(key))
        if method == "tasks/result":
            related = {f"{RESERVED}related-task": {"taskId": key}}
            if self.jobs[key].get("ends") == "input_required":
                asked = {"message": "how?", "requestedSchema": {"type": "object", "properties": {}}}
                with suppress(Stop):  # `ask` answers later
                    self.ask({"method": "elicitation/create", "params": {**asked, "_meta": related}}, request)
                return None
            if self.jobs[key].get("ends") == "failed":
                return self.error(request, -32000, "the job failed")
            return self.text(request, "the job is done", _meta=related)
        return self.reply(request, self.told_of(key) if method == "tasks/get" else {})

    def too_late(self, given: Json, request: Json) -> None:
        """Answered when it is cancelled: the two cross."""
        self.answered_too_late[request["id"]] = request

    def log(self, given: Json, request: Json) -> None:
        if not self.modern or f"{RESERVED}logLevel" in request["params"]["_meta"]:
            self.send({"jsonrpc": "2.0", "method": "notifications/message", "params": given})
        self.text(request, "logged")

    def late(self, given: Json, request: Json) -> None:
        self.later(given.get("seconds", 1), lambda: self.text(request, "late"))

    def progress(self, given: Json, request: Json) -> None:
        token = request["params"].get("_meta", {}).get("progressToken")
        total, every = given.get("total", 1), given.get("every", 0.1)

        def step(done: float) -> None:
            if request["id"] in self.cancelled:
                return
            if done >= total:
                self.text(request, "through")
                return
            if token is not None:
                params = {"progressToken": token, "progress": done, "total": total, **given.get("more", {})}
                self.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            self.later(every, lambda: step(done + every))

        step(0)


Action = Callable[[Fake, Json, Json | None], None]
Tool = Callable[[Fake, Json, Json], None]

ACTIONS: dict[str, Action] = {
    action.__name__: action
    for action in (
        *(Fake.die, Fake.stderr, Fake.junk, Fake.block, Fake.spawn, Fake.close),
        *(Fake.stop_reading, Fake.notify, Fake.change, Fake.ask, Fake.raw),
    )
}
TOOLS: dict[str, Tool] = {
    "echo": lambda self, given, request: self.text(request, json.dumps(given)),
    "env": lambda self, given, request: self.text(request, json.dumps(dict(os.environ))),
    "argv": lambda self, given, request: self.text(request, json.dumps(sys.argv)),
    "cwd": lambda self, given, request: self.text(request, os.getcwd()),
    "drop": lambda self, given, request: None,
    "fail": lambda self, given, request: self.text(request, given.get("message", "failed"), isError=True),
    "error": lambda self, given, request: self.error(
        request, given.get("code", -32000), given.get("message", "refused"), given.get("data")
    ),
} | {
    tool.__name__: tool
    for tool in (
        *(
            Fake.counts,
            Fake.meta,
            Fake.pid,
            Fake.exact,
            Fake.big,
            Fake.endless,
            Fake.deep,
            Fake.odd,
            Fake.log,
            Fake.late,
        ),
        *(Fake.progress, Fake.wants),
        *(Fake.too_late, Fake.progress),
    )
}


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _table(text: str) -> dict[str, float]:
    pairs = (item.partition("=") for item in _names(text))
    return {name: float(value) if "." in value else int(value) for name, _, value in pairs}


def _flags() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--era", choices=("both", "legacy", "modern"), default="both")
    flags.add_argument("--versions", type=_names, default=_names(LEGACY))
    flags.add_argument("--drop", type=_names, default=[])
    flags.add_argument("--refuse", type=_table, default={})
    flags.add_argument("--delay", type=_table, default={})
    flags.add_argument("--capabilities", type=_names, default=["tools"])
    flags.add_argument("--tools", type=int, default=0)
    for switch in [
        "never-init",
        "bad-tools",
        "ignore-eof",
        "ignore-term",
        "wrapper",
        "subscribable",
        "deny-subscribable",
    ]:
        flags.add_argument(f"--{switch}", action="store_true")
    flags.add_argument("--record")
    flags.add_argument("--max-life", type=float, default=1200)
    flags.add_argument("--at", nargs="+", action="append", default=[])
    return flags


def main() -> None:
    received = _flags().parse_args()
    if received.wrapper:
        # A shell gives a background job /dev/null as stdin, so ours goes round by descriptor 3.
        rest = [argument for argument in sys.argv if argument != "--wrapper"]
        shell = 'exec 3<&0; "$@" <&3 3<&- & exec 3<&- </dev/null; wait'
        os.execv("/bin/sh", ["sh", "-c", shell, "wrapper", sys.executable, "-I", "-S", *rest])
    signal.setitimer(signal.ITIMER_REAL, received.max_life)
    fake = Fake(received)

    def on_term(*_: object) -> None:
        fake.act("term")
        if not received.ignore_term:
            os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    fake.run()
    os._exit(0)  # without waiting for threads


if __name__ == "__main__":
    main()
