"""What shell scripts and Makefiles name, and those that they name in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.gate.provenance.scripts import places_named

FILES = {
    "run.sh": 'set -a; . "$ROOT/.env"\n[ -f ./local.cfg ] && bash tools/inner.sh -v',
    "tools/inner.sh": "source settings.conf\n exec ../bin/train --mode=fast <(cat more.conf)",
    "tools/never.sh": ". hidden.env",
    "Makefile": "-include .make.env\nall:\n\t@./trainbin && $(MAKE) -C sub",
    "sub/Makefile": "include deep.mk",
    "launch": "#!/bin/sh\n. launch.env",
    "launch.py": "#!/usr/bin/env python\nopen('python.env')",
    "notes": ". notes.env",
}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("sh run.sh", {".env", "local.cfg", "tools/settings.conf", "bin/train", "tools/more.conf"}),
        ("bash -c . ./my.env; exec python train.py", {"my.env"}),
        ("/work/shop/run.sh 8", {".env", "local.cfg"}),
        ("make -s", {".make.env", "trainbin"}),
        ("/usr/bin/make", {".make.env"}),
        ("./launch --fast", {"launch.env"}),
        ("cmake .", set()),
    ],
)
def test_a_command_names_what_its_words_and_its_scripts_name(
    tmp_path: Path, command: str, named: set[str]
) -> None:
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)

    found = places_named(tmp_path, [command])

    assert found >= {Path(name) for name in named}
    assert not found & {Path("tools/hidden.env"), Path("python.env"), Path("notes.env")}
    assert (Path(".make.env") in found) == (".make.env" in named)


def test_without_a_command_no_file_is_looked_at(tmp_path: Path) -> None:
    assert places_named(tmp_path / "nowhere", []) == set()
