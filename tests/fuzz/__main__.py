"""See `tests.fuzz.run`."""

from tests.fuzz.run import main

raise SystemExit(main())
