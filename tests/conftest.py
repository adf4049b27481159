"""How hard hypothesis tries: KVPROOF_PROFILE is test (the default), ci or nightly."""

import os

from hypothesis import HealthCheck, settings

# Output is as wide as a small terminal, wherever the tests run.
os.environ["COLUMNS"] = "80"

# No deadline: a busy machine isn't a failure. No database: seeds are committed as cases,
# and a run must not depend on an earlier one.
common = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("test", common, max_examples=25, stateful_step_count=25, derandomize=True)
settings.register_profile("ci", common, max_examples=200, stateful_step_count=50, derandomize=True)
settings.register_profile("nightly", common, max_examples=5_000, stateful_step_count=100, print_blob=True)
settings.load_profile(os.environ.get("KVPROOF_PROFILE", "test"))
