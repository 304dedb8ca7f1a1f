"""Start the test server.

python examples/testserver                       stdio: one JSON message a line
python examples/testserver --http [[HOST:]PORT]  Streamable HTTP at /mcp, 127.0.0.1:8888 by default

Tools: echo, add, fail, slow (reports progress, can be cancelled), json_response. Also two resources, a
template, and a prompt with argument completion. Supports initialize (2024-11-05 to 2025-11-25) and
server/discover (2026-07-28) on the same pipe or endpoint.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from server import INVALID_REQUEST, PARSE_ERROR, Json, TestServerRequest, TestServerSession

BATCH_REVISION = "2025-03-26"
"""The only revision with batches."""


def main(arguments: list[str]) -> int:
    """Serve until stdin ends, SIGTERM or Ctrl-C. Returns 0, 1 if it cannot listen, or 2 for wrong usage."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if not arguments:
            serve_stdio()
            return 0
        host, _, port = (arguments[1] if len(arguments) > 1 else "8888").rpartition(":")
        if arguments[0] != "--http" or len(arguments) > 2 or not port.isdecimal():
            asked = arguments[0] in ("-h", "--help")
            print(__doc__, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2
        import streamable_http  # imported here because http.server is slow to import

        streamable_http.serve(host or "127.0.0.1", int(port))
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the client or user has ended the server
    except OSError as error:
        print(f"cannot listen: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def serve_stdio() -> None:
    """Serve until stdin or stdout is closed; running calls are dropped."""
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
            return  # the main loop notices it too

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
            send(_error_response("Not JSON"))
            continue
        if isinstance(payload, list) and payload and peer.version == BATCH_REVISION:
            answer_batch(payload)
        elif not isinstance(payload, dict):
            send(_error_response("Not a JSON-RPC message", INVALID_REQUEST))
        elif (request := peer.accept(payload, send)) is None:
            continue
        elif request.method == "tools/call" and request.params.get("name") == "slow":
            # Only this tool takes time; it must not delay other requests.
            threading.Thread(target=finish_in_thread, args=(request,), daemon=True).start()
        else:
            finish(request)


def _error_response(message: str, code: int = PARSE_ERROR) -> Json:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
