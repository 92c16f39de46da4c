"""What a change sets in the ini file: with these settings it would pass by its own word."""

import re
import shlex
from collections.abc import Mapping

import pytest

from perfsuite.errors import SettingError
from perfsuite.gate.git.command import answer
from perfsuite.gate.git.find_base import find_base, target_branch
from perfsuite.gate.git.repository import Base, find_top
from perfsuite.plugin.options import given

# What comes of each setting.
_EFFECTS = {
    "base": "the change would say what it is compared with",
    "base-dir": "the change would say what it is compared with",
    "gate": "--benchmark-compare would gate nothing",
    "numerics": "no cell would be shown to compute as one process",
}


def refuse_change(config: pytest.Config, environ: Mapping[str, str], *, measures: bool) -> None:
    """Refuse such a setting in an ini file, unless the base's has it too or nothing is lost by it.

    `measures` says whether the session would be gated without any setting. Raises a SettingError
    where the change brings one, or the base is not known.
    """
    words = (*config.invocation_params.args, *shlex.split(environ.get("PYTEST_ADDOPTS", "")))
    typed = {str(word).partition("=")[0] for word in words}
    settings = given(config)
    if settings.get("gate") == "off":
        settings.pop("numerics", None)
    names = [
        name
        for name in _EFFECTS
        if settings.get(name, "on") not in ("on", "") and f"--perf-{name}" not in typed
    ]
    top = find_top(config.rootpath) if names else None
    if top is None or config.inipath is None or not config.inipath.is_relative_to(top):
        return
    typed_base = settings.get("base") if "--perf-base" in typed else None
    base = find_base(config.rootpath, typed_base, target=target_branch(environ))
    if not isinstance(base, Base):
        return
    path = config.inipath.relative_to(top).as_posix()
    theirs = answer(top, "show", f"{base.revision}:{path}") or ""
    for name in names:
        ini = f"perf_{name.replace('-', '_')}"
        setting = rf"""^(?:\s*{ini}\s*=\s*|[^#\n]*--perf-{name}[=\s])["']?([^\s"']+)"""
        found = re.search(setting, theirs, re.MULTILINE)
        is_new = measures if found is None else found[1] != settings[name]
        if is_new:
            raise SettingError(
                f"{ini} is {settings[name]!r} ({config.inipath}) and was not in the base, "
                f"{base.described}, so {_EFFECTS[name]}; leave it out, or add "
                f"--perf-{name}={settings[name]}"
            )
