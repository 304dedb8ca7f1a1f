"""SHA-256 and BLAKE2 without OpenSSL.

`hashlib` loads OpenSSL, which takes 4 MB of an idle daemon's 30. As the standard
library's `random` does, this module prefers the modules that `hashlib` uses without OpenSSL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import blake2b, sha256
else:
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b
    try:
        from _sha2 import sha256  # Python 3.12 and later
    except ImportError:
        try:
            from _sha256 import sha256  # Python 3.11
        except ImportError:
            from hashlib import sha256

__all__ = ["blake2b", "sha256"]
