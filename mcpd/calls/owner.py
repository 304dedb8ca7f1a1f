"""Whose a task or a kept result is, so that no other client can use it."""

from __future__ import annotations

from weakref import ref

from mcpd.calls.call import Caller
from mcpd.calls.client_context import ClientContext


def owner_of(caller: Caller, context: ClientContext) -> object:
    """Return a value that is equal only for requests of the same client.

    A client without a connection of its own is the same if the facts that policies know about it are the
    same.
    """
    client = caller.facts(context)
    if client.person:
        return client.person
    if not caller.may_return:
        return ref(caller)
    return (client.executable, client.transport, client.names)
