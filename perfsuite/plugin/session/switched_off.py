"""A gate that a change switches off in the ini file: it would pass by its own word."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from perfsuite.errors import SettingError
from perfsuite.gate.git.command import answer
from perfsuite.gate.git.find_base import find_base, target_branch
from perfsuite.gate.git.repository import Base, find_top
from perfsuite.plugin.options import given

_SETTING = re.compile(r"""^\s*perf_gate\s*=\s*["']?(on|off)\b""", re.MULTILINE)


def refuse_change(config: pytest.Config, environ: Mapping[str, str], *, measures: bool) -> None:
    """Refuse `perf_gate = off` in an ini file, unless the base's has it or had no gate to lose.

    `measures` says whether the session would be gated without any setting. Raises a SettingError
    where the change switches the gate off, or the base is not known.
    """
    top = find_top(config.rootpath)
    if top is None or config.inipath is None or not config.inipath.is_relative_to(top):
        return
    base = find_base(config.rootpath, given(config).get("base"), target=target_branch(environ))
    if not isinstance(base, Base):
        return
    path = config.inipath.relative_to(top).as_posix()
    found = _SETTING.search(answer(top, "show", f"{base.revision}:{path}") or "")
    was_on = measures if found is None else found[1] == "on"
    if was_on:
        raise SettingError(
            f"perf_gate is 'off' ({config.inipath}) and was not in the base, {base.described}, so "
            "--benchmark-compare would gate nothing; leave it out, or add --perf-gate=off"
        )
