"""The test server, which is not a part of the installed package."""

from pathlib import Path

TEST_SERVER = str(Path(__file__).parent.parent / "examples" / "testserver")
