"""The program gh, over a GitHub that is a folder: pull requests, comments and artifacts.

It knows the calls and the filters that our workflows make, and refuses any other.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

REPOSITORY = "octo/shop"
BOT = "github-actions[bot]"
_OF_THIS_HEAD = ".[] | select(.head.sha == env.HEAD_SHA) | .number"
_OF_THIS_MARKER = (
    '.[] | select(.user.login == "github-actions[bot]") '
    "| select(.body | startswith(env.MARKER)) | .id"
)


class GitHub:
    """What a repository has, and what was asked of it.

    Attributes:
        artifacts: Those of run 71, by name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifacts = folder / "artifacts"

    def put(self, programs: Path) -> dict[str, str]:
        """Write the program into a folder; return what it needs to find this GitHub."""
        from workflow_steps import write_program  # which the program has no use for

        self.folder.mkdir()
        self.artifacts.mkdir()
        self.write(pulls=[], comments=[], calls=[])
        script = f'exec "{sys.executable}" "{Path(__file__).resolve()}" "$@"'
        write_program(programs, "gh", script)
        return {"MADE_UP_GITHUB": str(self.folder)}

    def write(self, **lists: list[Any]) -> None:
        """Replace lists: pulls, comments, calls."""
        for name, value in lists.items():
            (self.folder / f"{name}.json").write_text(json.dumps(value))

    def read(self, name: str) -> list[Any]:
        """One of these lists."""
        found: list[Any] = json.loads((self.folder / f"{name}.json").read_text())
        return found

    @property
    def changes(self) -> list[str]:
        """The calls that changed something, in order."""
        return [call for call in self.read("calls") if not call.startswith("GET ")]

    def comment(self, login: str, body: str) -> None:
        """Have someone write a comment."""
        comments = self.read("comments")
        made = {"id": 100 + len(comments), "user": {"login": login}, "body": body}
        self.write(comments=[*comments, made])

    def ask(self, method: str, path: str, fields: dict[str, str]) -> Any:
        """Answer a call of the API."""
        self.write(calls=[*self.read("calls"), f"{method} {path}"])
        where = path.removeprefix(f"repos/{REPOSITORY}/")
        if (method, where) == ("GET", "pulls"):
            assert fields["state"] == "open"
            return [pull for pull in self.read("pulls") if pull["head"]["label"] == fields["head"]]
        if (method, where) == ("GET", "issues/7/comments?per_page=100"):
            return self.read("comments")
        if (method, where) == ("POST", "issues/7/comments"):
            self.comment(BOT, fields["body"])
        elif method == "PATCH" and where.startswith("issues/comments/"):
            comments = self.read("comments")
            (one,) = (each for each in comments if where == f"issues/comments/{each['id']}")
            one["body"] = fields["body"]
            self.write(comments=comments)
        else:
            raise LookupError(f"{method} {path}")
        return None


def _read(field: str, *, has_files: bool) -> tuple[str, str]:
    name, _, value = field.partition("=")
    return name, Path(value[1:]).read_text() if has_files and value.startswith("@") else value


def _api(hub: GitHub, words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--method")
    parser.add_argument("--field", action="append", default=[])
    parser.add_argument("--raw-field", action="append", default=[])
    parser.add_argument("--jq")
    parser.add_argument("--paginate", action="store_true")
    parser.add_argument("--silent", action="store_true")
    given = parser.parse_args(words)
    fields = dict(_read(field, has_files=True) for field in given.field)
    fields |= dict(_read(field, has_files=False) for field in given.raw_field)
    answer = hub.ask(given.method or ("POST" if fields else "GET"), given.path, fields)
    if given.jq == _OF_THIS_HEAD:
        sha = os.environ["HEAD_SHA"]
        answer = [pull["number"] for pull in answer if pull["head"]["sha"] == sha]
    elif given.jq == _OF_THIS_MARKER:
        marker = os.environ["MARKER"]
        answer = [
            one["id"]
            for one in answer
            if one["user"]["login"] == BOT and one["body"].startswith(marker)
        ]
    else:
        assert given.jq is None, given.jq
        assert given.silent
        return
    print("\n".join(map(str, answer)))


def _download(hub: GitHub, words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--repo")
    parser.add_argument("--pattern")
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args(words)
    assert (given.run, given.repo) == ("71", REPOSITORY)
    found = [path for path in hub.artifacts.iterdir() if fnmatch.fnmatch(path.name, given.pattern)]
    for path in found:
        shutil.copytree(path, given.dir / path.name)
    if not found:
        sys.exit("no artifact matches any of the names or patterns provided")


if __name__ == "__main__":
    assert os.environ["GH_TOKEN"]
    hub = GitHub(Path(os.environ["MADE_UP_GITHUB"]))
    if sys.argv[1] == "api":
        _api(hub, sys.argv[2:])
    else:
        assert sys.argv[1:3] == ["run", "download"], sys.argv
        _download(hub, sys.argv[3:])
