"""The faults that a login must survive. Each has a test: `test_tN_…` covers row N."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
FAULTS = {
    1: "50 calls at once with an expired token: one token request, each call executed once, 20 rounds",
    2: "calls with the old token arrive after its renewal has ended it: no further token request",
    3: "ten clients on a cold start with an expired token: one token request",
    4: "two daemons and one file of logins: one renews",
    5: "an authorization server answers 500, 503, 429, HTML, nonsense or nothing: the login is kept",
    6: "the answer with the rotated token is lost: one repetition, then the truth",
    7: "SIGKILL at each point of a renewal: the file is always valid",
    8: "the first of many waiting calls is cancelled: the others succeed",
    9: "a late invalid_grant for an earlier token: the newer one stays",
    10: "the clock jumps, the machine sleeps, tokens live 5 s to for ever: one renewal for each",
    11: "a full disk, a file that others can read, and damaged files: nothing is overwritten",
    12: "forged answers (iss, state, code of another server, two tabs): no token request, no text of theirs",
    13: "hostile metadata, addresses, redirects and sizes: nothing is reached, and the step is named",
    14: "10,000 requests to 20 servers with redirects: no token at a wrong URL",
    15: "canaries of every kind of token and at every level of logging: shown nowhere",
    16: "a server asks for more scopes for ever: a person is asked once for the same ones",
    17: "a registration that the server has forgotten: one new one, and no error page",
    18: "another authorization server while 50 calls run: nothing of the first reaches the second",
    19: "a login without a browser on the machine: pasted address, forwarded port",
    20: "a link in the editor: the call continues within a second",
    21: "the stream for unsolicited messages across the end of a token: heard again within a second",
}


def test_every_fault_has_a_test() -> None:
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        if "node_modules" not in path.parts:
            found |= {
                int(number) for number in re.findall(r"^(?:async )?def test_t(\d+)_", path.read_text(), re.M)
            }
    assert found == FAULTS.keys()
