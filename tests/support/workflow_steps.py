"""A job of a workflow, or an action's steps, run one after the other as GitHub's runner does.

Actions that others wrote are played: a checkout is there already, an artifact is a folder, and a
cache a file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
ACTION = ROOT / "action.yml"
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_CONTEXT = re.compile(r"\b(?:github|inputs|needs|runner|steps|strategy)(?:\.[\w-]+)+")
# The runner's own, for a step that says `shell: bash`.
_BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")


def read_yaml(path: Path) -> dict[str, Any]:
    """A workflow or an action; YAML 1.1 takes the key "on" for a truth value."""
    document: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in document.items()}


def steps_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All steps of a workflow or an action."""
    jobs = [document["runs"]] if "runs" in document else document["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def write_program(folder: Path, name: str, script: str) -> None:
    """Write a program of a shell that stands in for another one."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)


def write_python(folder: Path, log: Path) -> None:
    """Write a python and a pip that install nothing, and keep what they are given in a file."""
    script = f"""\
case "$1 $2" in
  "-m pip") shift 2; echo "$@" >> "{log}" ;;
  "-m venv") mkdir -p "$3/bin" && ln -s "$0" "$3/bin/python" ;;
  *) exec "{sys.executable}" "$@" ;;
esac"""
    for name in ("python", "python3"):
        write_program(folder, name, script)
    write_program(folder, "pip", f'echo "$@" >> "{log}"')


def path_of(*folders: Path) -> str:
    """A PATH with these folders first, then those of this interpreter and of this machine."""
    return os.pathsep.join(
        [*map(str, folders), str(Path(sys.executable).parent), os.environ["PATH"]]
    )


@dataclass(kw_only=True)
class Job:
    """A job on a runner.

    Attributes:
        workspace: The checkout.
        temp: The runner's folder for temporary files; gone with the job.
        artifacts: Where artifacts are, by name, with the caches beside them; both outlive the job.
        values: Of the contexts in expressions: `github.repository`, `needs.render.outputs.number`.
        environ: Of every step.
        failed: The exit code of the first step that failed, 0 where none did.
        output: What all steps printed.
    """

    workspace: Path
    temp: Path
    artifacts: Path
    values: dict[str, str]
    environ: dict[str, str]
    failed: int = 0
    output: str = ""
    summary: str = ""
    programs: list[Path] = field(default_factory=list)

    def run(self, steps: Iterable[Mapping[str, Any]]) -> None:
        """Run those whose condition holds."""
        self.temp.mkdir(parents=True, exist_ok=True)
        self.values["runner.temp"] = str(self.temp)
        for step in steps:
            if not self.evaluate(step.get("if", "success()")):
                continue
            code = self._act(step) if "uses" in step else self._call(step)
            if code and not step.get("continue-on-error", False):
                self.failed = self.failed or code

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of ours, whose operators are Python's by another name."""

        def hash_files(pattern: str) -> str:
            return "a hash" if any(self.workspace.glob(pattern)) else ""

        known = {
            "always": lambda: True,
            "success": lambda: not self.failed,
            "hashFiles": hash_files,
            "format": lambda text, *values: text.format(*values),
        }
        python = _CONTEXT.sub(lambda found: repr(self.values.get(found[0], "")), expression)
        python = python.replace("&&", " and ").replace("||", " or ").strip()
        return eval(python, {"__builtins__": {}}, known)

    def expand(self, text: object) -> str:
        """A text with its expressions' values."""
        return _EXPRESSION.sub(lambda found: str(self.evaluate(found[1])), str(text))

    @property
    def _caches(self) -> Path:
        return self.artifacts.with_name("caches")

    def _act(self, step: Mapping[str, Any]) -> int:
        given = {name: self.expand(value) for name, value in step.get("with", {}).items()}
        action = step["uses"].partition("@")[0]
        if action == "actions/upload-artifact":
            source, target = self.workspace / given["path"], self.artifacts / given["name"]
            if source.is_dir() and any(source.iterdir()):
                shutil.copytree(source, target)
            return 0
        if action == "actions/download-artifact":
            shutil.copytree(self.artifacts / given["name"], self.workspace / given["path"])
            return 0
        if action == "actions/cache/save":
            self._caches.mkdir(exist_ok=True)
            shutil.copy(self.workspace / given["path"], self._caches / given["key"])
            return 0
        if action == "actions/cache/restore":
            prefixes = given["restore-keys"].splitlines()
            found = (sorted(self._caches.glob(f"{one}*"), key=os.path.getmtime) for one in prefixes)
            if kept := next(filter(None, found), None):
                (self.workspace / given["path"]).parent.mkdir(exist_ok=True)
                shutil.copy(kept[-1], self.workspace / given["path"])
            return 0
        assert action in ("actions/checkout", "actions/setup-python"), action
        return 0

    def _call(self, step: Mapping[str, Any]) -> int:
        files = {
            name: self.temp / f"{name.lower()}-file"
            for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
        }
        for path in files.values():
            path.write_text("")
        given = {name: self.expand(value) for name, value in step.get("env", {}).items()}
        script = self.temp / "step.sh"
        script.write_text(step["run"])
        ended = subprocess.run(
            [*_BASH, str(script)],
            cwd=self.workspace,
            env={
                **self.environ,
                "PATH": path_of(*self.programs),
                "RUNNER_TEMP": str(self.temp),
                **{name: str(path) for name, path in files.items()},
                **given,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        self.output += ended.stdout
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        for line in files["GITHUB_OUTPUT"].read_text().splitlines():
            name, _, value = line.partition("=")
            self.values[f"steps.{step['id']}.outputs.{name}"] = value
        for line in files["GITHUB_ENV"].read_text().splitlines():
            name, _, value = line.partition("=")
            self.environ[name] = value
        for line in files["GITHUB_PATH"].read_text().splitlines():
            self.programs.insert(0, Path(line))
        return ended.returncode
