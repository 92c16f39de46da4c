"""A pytest plugin with one cell, that of a command: what `perfsuite gate -- COMMAND` launches."""

import json
from collections.abc import Callable
from typing import Any

import pytest


class _Cell(pytest.Function):
    @property
    def nodeid(self) -> str:
        return self.name


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the arguments of `command_benchmark`, and the name of the cell."""
    parser.addoption("--command-cell", metavar="JSON", help="arguments of command_benchmark")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> bool:
    """Collect the cell instead of files."""
    config = session.config
    config.args[:] = []
    arguments: dict[str, Any] = json.loads(config.getoption("--command-cell"))

    def measure(command_benchmark: Callable[..., Any]) -> None:
        command_benchmark(**arguments)

    cell = _Cell.from_parent(session, name=arguments["name"], callobj=measure)
    session.items, session.testscollected = [cell], 1
    config.hook.pytest_collection_modifyitems(session=session, config=config, items=session.items)
    config.hook.pytest_collection_finish(session=session)
    return True
