"""The harness has moved: it is `tests.processes`, for all suites. This name is kept for who imports it from here."""

from tests.processes import *  # noqa: F403
