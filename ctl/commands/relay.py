"""`mcpctl _relay`: connects stdin and stdout to mcpd, for mcpctl on another machine (`mcpctl --host`)."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

import click

from ctl.cli.errors import CtlError
from ctl.cli.invocation import CliContext
from ctl.daemon.ssh import hello_line

if TYPE_CHECKING:
    from _socket import socket

_CHUNK = 64 * 1024


@click.command(hidden=True)
@click.pass_obj
def relay(cli: CliContext) -> int:
    """Connect stdin and stdout to mcpd, for `mcpctl --host` on another machine.

    Ends when either side closes. The first line of the output is the relay's own.
    """
    try:
        # As for an editor: a shell that runs one command may lack directories such as ~/.local/bin.
        daemon = cli.connect(with_login_path=True).connection
    except CtlError as error:
        _write(hello_line(error))
        return error.exit
    daemon.settimeout(None)
    with suppress(OSError):  # either side has gone
        _write(hello_line(None))
        Thread(target=_send, args=(daemon,), daemon=True).start()
        while data := daemon.recv(_CHUNK):
            _write(data)
    return 0


def _send(daemon: socket) -> None:
    with suppress(OSError):
        while data := os.read(0, _CHUNK):
            daemon.sendall(data)
    with suppress(OSError):
        daemon.shutdown(2)  # SHUT_RDWR: nobody reads the answers


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
