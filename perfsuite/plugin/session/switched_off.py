"""What a change switches off in the ini file: it would pass by its own word."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import pytest

from perfsuite.errors import SettingError
from perfsuite.gate.git.command import answer
from perfsuite.gate.git.find_base import find_base, target_branch
from perfsuite.gate.git.repository import Base, find_top
from perfsuite.plugin.options import given

# What each setting is for.
_LOST = {
    "gate": "--benchmark-compare would gate nothing",
    "numerics": "no cell would be shown to compute as one process",
}


def refuse_change(
    config: pytest.Config, environ: Mapping[str, str], name: str, *, measures: bool
) -> None:
    """Refuse an option that is off by an ini file, unless by the base's too or nothing is lost.

    `measures` says whether the session would be gated without any setting. Raises a SettingError
    where the change switches the option off, or the base is not known.
    """
    typed = (*config.invocation_params.args, *shlex.split(environ.get("PYTEST_ADDOPTS", "")))
    if any(str(word).partition("=")[0] == f"--perf-{name}" for word in typed):
        return
    top = find_top(config.rootpath)
    if top is None or config.inipath is None or not config.inipath.is_relative_to(top):
        return
    base = find_base(config.rootpath, given(config).get("base"), target=target_branch(environ))
    if not isinstance(base, Base):
        return
    path = config.inipath.relative_to(top).as_posix()
    setting = rf"""^(?:\s*perf_{name}\s*=\s*|[^#\n]*--perf-{name}[=\s])["']?(on|off)\b"""
    theirs = answer(top, "show", f"{base.revision}:{path}") or ""
    found = re.search(setting, theirs, re.MULTILINE)
    was_on = measures if found is None else found[1] == "on"
    if was_on:
        raise SettingError(
            f"perf_{name} is 'off' ({config.inipath}) and was not in the base, {base.described}, "
            f"so {_LOST[name]}; leave it out, or add --perf-{name}=off"
        )
