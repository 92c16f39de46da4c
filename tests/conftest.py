"""Tests of the suite itself. `pytester` runs inner pytest sessions for the plugin's tests."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester"]

# No test asserts a duration, those of Hypothesis included.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
