"""What shell scripts and Makefiles name, and those that they name in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.gate.provenance.scripts import places_named

FILES = {
    "run.sh": 'set -a; . "$ROOT/.env" # and comment.env\n[ -f ./a.cfg ] && bash tools/inner.sh -v',
    "tools/inner.sh": "source b.conf\n. ~/home.env\n exec ../bin/train <(cat c.conf) $HOME/h.env",
    "tools/never.sh": ". never.env",
    "other/run.sh": ". other.env",
    "Makefile": "-include .make.env\nall:\n\t@./trainbin && $(MAKE) -C sub",
    "sub/Makefile": "include deep.mk",
    "vendor/Makefile": "include vendor.mk",
    "launch": "#!/bin/sh\n. launch.env",
    "python": "#!/usr/bin/env python3\nopen('python.env')",
    "notes": ". notes.env",
    "long.sh": f"{'-' * 300}\n. ./{'k' * 300}\n. long.env",
    "binary.sh": "#!/bin/sh\n. binary.env\nexit\n\0",
}


RUN = {".env", "a.cfg", "tools/b.conf", "bin/train", "tools/c.conf"}
MAKE = {".make.env", "trainbin", "sub/deep.mk"}
EVERY = {Path(name) for name in RUN | MAKE}
EVERY |= {Path(f"{name}.env") for name in ("my", "launch", "python", "notes", "long", "binary")}
EVERY |= {Path(f"{name}.env") for name in ("comment", "home", "tools/home", "h", "tools/h")}
EVERY |= {Path("tools/never.env"), Path("other/other.env"), Path("vendor/vendor.mk")}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("sh run.sh", RUN),
        ("bash -c . ./my.env; exec python train.py", {"my.env"}),
        ("{top}/other/run.sh 8", {"other/other.env", *RUN}),  # either, by its name
        ("make -s", MAKE),
        ("/usr/bin/make", MAKE),
        ("sh -c make # it", MAKE),
        ("./launch --fast", {"launch.env"}),
        ("./python", set()),
        ("./notes", set()),
        ("sh long.sh", {"long.env"}),
        ("sh binary.sh", {"binary.env"}),
        ("cmake .", set()),
        ("ptxas run.sh Makefile", set()),
    ],
)
def test_a_command_names_what_its_words_and_its_scripts_name(
    tmp_path: Path, command: str, named: set[str]
) -> None:
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)

    found = places_named(tmp_path, [command.format(top=tmp_path)])

    assert found & EVERY == {Path(name) for name in named}


def test_without_a_command_no_file_is_looked_at(tmp_path: Path) -> None:
    assert places_named(tmp_path / "nowhere", []) == set()
