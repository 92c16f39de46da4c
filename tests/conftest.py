"""Tests of the suite itself. `pytester` runs inner pytest sessions for the plugin's tests."""

from __future__ import annotations

pytest_plugins = ["pytester"]
