"""The pytest plugin. pytest finds its hooks here."""

from perfsuite.plugin.hooks import TAKES_TURNS, pytest_configure
from perfsuite.plugin.options import pytest_addoption

__all__ = ["TAKES_TURNS", "pytest_addoption", "pytest_configure"]
