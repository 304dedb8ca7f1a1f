"""A stub of mcpd without trio: the lock, the socket, `mcpd/version` and `mcpd/shutdown`.

What is tested with it is who starts and stops a daemon, not what one does. $STUB says how it behaves:
`fails` at once, `refuses` its configuration, is `mute` (starts and never listens), `lingers` (it exits only
when its home directory contains a file `leave`), or nothing special.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time

from mcpd.files.paths import socket_directory, socket_path
from mcpd.process.instance_lock import AlreadyRunning, hold_instance_lock, remove_stale_socket


def main() -> int:
    print(f"stand-in {os.getpid()} starts", flush=True)
    if trace := os.environ.get("STUB_TRACE"):
        with open(trace, "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('MCPD_INSTANCE', '-')} {os.getcwd()}\n")
    if configs := os.environ.get("STUB_CONFIGS"):
        with open(configs, "a") as file:
            file.write(os.environ.get("MCPD_CONFIG", "-") + "\n")
    if os.environ.get("STUB") == "fails":
        print('{"time": "now", "level": "warning", "message": "it warns first;"}', file=sys.stderr)
        print("cannot read the configuration: ]", file=sys.stderr)
        return 78
    if os.environ.get("STUB") == "refuses":
        print("config.json cannot be used", file=sys.stderr)
        return 2
    if os.environ.get("STUB") == "mute":
        time.sleep(60)
    path = socket_path(os.environ)
    socket_directory(path)
    try:
        with hold_instance_lock(path), socket.socket(socket.AF_UNIX) as listener:
            remove_stale_socket(path)
            listener.bind(path)
            listener.listen(128)
            serve(listener)
            os.unlink(path)
            listener.close()
            while os.environ.get("STUB") == "lingers" and not os.path.exists(os.path.expanduser("~/leave")):
                time.sleep(0.01)
    except AlreadyRunning as error:
        print(error, file=sys.stderr)
        return 3
    return 0


def serve(listener: socket.socket) -> None:
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                result = {"pid": os.getpid(), "version": "0.0-standin", "api": 1}
                if request["method"] == "mcpd/status":
                    path = os.environ.get("MCPD_CONFIG") or os.path.expanduser("~/.config/mcpd/config.json")
                    config = {"path": path, "problems": []}
                    result = {"config": config, "servers": [], "daemon": {}}
                reply = {"jsonrpc": "2.0", "id": request["id"], "result": result}
                connection.sendall(json.dumps(reply).encode() + b"\n")
                if request["method"] == "mcpd/shutdown":
                    over.set()

    listener.settimeout(0.05)
    while not over.is_set():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        threading.Thread(target=answer, args=[connection], daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
