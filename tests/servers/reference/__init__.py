"""A server with everything that the conformance suite calls, on both generations of the official SDK.

    python -m tests.servers.reference.sdk2 --stdio                             # every revision
    python -m tests.servers.reference.sdk2 --http 127.0.0.1:8000               # … at http://127.0.0.1:8000/mcp
    .venv-mcp1/bin/python -m tests.servers.reference.sdk1 --stdio              # those those with `initialize`

What it offers is written once, in values that know no SDK: `content`, `asking` and `rounds`. The SDKs only
carry it, so that what differs between the two is theirs.
"""
