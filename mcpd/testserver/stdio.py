"""The test server over stdio: one JSON message a line, and a slow call keeps nobody waiting."""

from __future__ import annotations

import json
import os
import sys
import threading

from mcpd.testserver.conversation import TestServerSession
from mcpd.testserver.request import INVALID_REQUEST, PARSE_ERROR, Json, TestServerRequest

BATCH_REVISION = "2025-03-26"
"""The one revision that has them."""


def serve() -> None:
    """Until stdin ends or nobody reads stdout; calls that still run then are dropped."""
    lock = threading.Lock()

    def send(message: object) -> None:
        with lock:
            line = memoryview(json.dumps(message).encode() + b"\n")
            while line:
                line = line[os.write(1, line) :]

    def finish(request: TestServerRequest) -> None:
        if (answer := peer.answer(request)) is not None:
            send(answer)

    def finish_in_thread(request: TestServerRequest) -> None:
        try:
            finish(request)
        except BrokenPipeError:
            return  # the loop below notices too

    def answer_batch(batch: list[object]) -> None:
        answers: list[object] = []
        requests = [peer.accept(item, answers.append) for item in batch if isinstance(item, dict)]
        answers += filter(None, (peer.answer(request) for request in requests if request))
        if answers:
            send(answers)

    peer = TestServerSession()
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        try:
            payload = json.loads(line)
        except (ValueError, RecursionError):
            send(_error("Not JSON"))
            continue
        if isinstance(payload, list) and payload and peer.version == BATCH_REVISION:
            answer_batch(payload)
        elif not isinstance(payload, dict):
            send(_error("Not a JSON-RPC message", INVALID_REQUEST))
        elif (request := peer.accept(payload, send)) is None:
            continue
        elif request.method == "tools/call" and request.params.get("name") == "slow":
            # Only this one takes time, and must not keep the others waiting.
            threading.Thread(target=finish_in_thread, args=(request,), daemon=True).start()
        else:
            finish(request)


def _error(message: str, code: int = PARSE_ERROR) -> Json:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
