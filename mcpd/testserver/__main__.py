"""Start the test server.

python -m mcpd.testserver                       stdio: one JSON message a line
python -m mcpd.testserver --http [[HOST:]PORT]  Streamable HTTP at /mcp, 127.0.0.1:8888 by default

Tools: echo, add, fail, slow (reports progress, stops when cancelled), json_response; two resources, a
template, and a prompt whose argument completes. It answers initialize (2024-11-05 to 2025-11-25) and
server/discover (2026-07-28) on the same pipe or endpoint.
"""

from __future__ import annotations

import signal
import sys


def main(arguments: list[str]) -> int:
    """Serve until stdin ends, SIGTERM or Ctrl-C; the exit status: 0, 1 if it cannot listen, 2 for usage."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if not arguments:
            from mcpd.testserver import stdio

            stdio.serve()
            return 0
        host, _, port = (arguments[1] if len(arguments) > 1 else "8888").rpartition(":")
        if arguments[0] != "--http" or len(arguments) > 2 or not port.isdecimal():
            asked = arguments[0] in ("-h", "--help")
            print(__doc__, file=sys.stdout if asked else sys.stderr)
            return 0 if asked else 2
        from mcpd.testserver import streamable  # http.server alone takes as long to import as all the rest

        streamable.serve(host or "127.0.0.1", int(port))
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # both only say that we are no longer wanted
    except OSError as error:
        print(f"cannot listen: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
