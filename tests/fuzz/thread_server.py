"""A server on a port of this machine, with a thread for each connection."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class ThreadServer:
    """Serves until `close`. A subclass handles one connection in `serve`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name=type(self).__name__, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def serve(self, connection: socket.socket) -> None:
        """Answer until either side closes the connection."""
        raise NotImplementedError

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(20)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()
