"""How long a message of a client may be. mcpctl imports this for large requests, so it imports nothing."""

MAX_MESSAGE = 32 * 1024 * 1024
"""Bytes of one message to the daemon, as a line without its newline, or as the body of an HTTP request."""


def describe_excess(size: int) -> str:
    """Return the error text for a request of `size` bytes, which was not sent because of the limit."""
    return (
        f"the request takes {size} bytes as JSON, and mcpd accepts at most {MAX_MESSAGE} (32 MiB); nothing "
        "was sent. Send less at once, or save the data in a file that the server can read"
    )
