"""The revisions by short names, for rules that say from which of them on something is known."""

from __future__ import annotations

from mcpd.protocol.negotiate import PROTOCOL_VERSIONS

R1, R2, R3, R4, R5 = sorted(PROTOCOL_VERSIONS)[:5]
"""From the oldest revision to the newest; they compare as the dates they are."""
