"""Why something does not work, and what to do: `status SERVER`, `why`, `debug`, `doctor`, `daemon status`."""
