"""The user's own call of pytest: what it was given, and the same call in another tree."""

import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

# The options of perfsuite that decide which cells there are and what they run. The others concern
# only the session, and the base's perfsuite may not know them.
_HANDED_ON = frozenset({"device", "matrix", "rounds", "seed", "timeout", "collective-timeout"})
_OURS = "--perf-"
# What one letter of the interpreter's options becomes where a launch cannot have it: -I is -E, -s
# and -P, -E is an environment without Python's variables, and -B would compile in every launch.
_LETTERS = {"I": ("-s", "-P"), "E": (), "B": ()}
# Not what selects, shows and stores: any other option may be the suite's own.
_SHOWN = r"(?:junit-?xml|durations|color|tb|cov|cov-report|maxfail|strict-markers|capture)(?:=|$)"
_OF_CELLS = re.compile(rf"--(?!perf-(?!device)|benchmark-|{_SHOWN})|-[^-kmvqxsrlnpW]")
# Where they stand after a path in the value of an option.
_PATH_ENDS = r"(?![^/:,;=\s])"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One call of pytest, as it was typed less what is for the calling session alone.

    Its environment is from before any code under test could change it.
    """

    folder: Path
    arguments: tuple[str, ...] = ()
    python_options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @classmethod
    def of_this_process(
        cls, folder: Path, arguments: Iterable[str], environment: Mapping[str, str]
    ) -> Self:
        """Return the call that this interpreter was started for, in that environment."""
        hidden = "PYTHON" if sys.flags.ignore_environment else ()
        kept = {name: value for name, value in environment.items() if not name.startswith(hidden)}
        if addopts := shlex.split(environment.get("PYTEST_ADDOPTS", "")):
            kept["PYTEST_ADDOPTS"] = shlex.join(less_ours(addopts))
        words, options = less_ours(arguments), interpreter_options(sys.orig_argv)
        return cls(folder=folder, arguments=words, python_options=options, environment=kept)

    def followed_by(self, *options: str) -> Self:
        """Return the call with further options, which win over those that were typed."""
        end = self.arguments.index("--") if "--" in self.arguments else len(self.arguments)
        arguments = (*self.arguments[:end], *options, *self.arguments[end:])
        return replace(self, arguments=arguments)

    def without_missing_configuration(self) -> Self:
        """Return the call without the configuration file that it names, where it is not there."""
        kept: list[str] = []
        tokens = iter(self.arguments)
        for token in tokens:
            name, separator, value = token.partition("=")
            if name in ("-c", "--config-file"):
                value = value if separator else next(tokens, "")
                kept += [name, value] if (self.folder / value).is_file() else []
            else:
                kept.append(token)
        return replace(self, arguments=tuple(kept))

    def moved(self, top: Path, to: Path) -> Self:
        """Return the same call in the tree `to`, the counterpart of `top`.

        Arguments lead to that tree wherever they led to `top`; variables only where it has what
        they name, since a virtual environment in a checkout is in no other tree.
        """
        folder = self.folder.resolve()
        inner = folder.relative_to(top) if folder.is_relative_to(top) else None
        prefixes = {str(top)}
        if inner is not None and (shown := self.environment.get("PWD")) is not None:
            # As the shell shows it, through symbolic links.
            above = Path(*Path(shown).parts[: len(Path(shown).parts) - len(inner.parts)])
            prefixes |= {str(above)} if above.resolve() == top else set()
        beginnings = "|".join(map(re.escape, sorted(prefixes)))
        pattern = re.compile(rf"(?<![\w./-])(?:{beginnings}){_PATH_ENDS}")

        def lead(text: str) -> str:
            return pattern.sub(lambda _: str(to), text)

        environment = dict(self.environment)
        for name in environment.keys() - {"HOME"}:
            led = [(part, lead(part)) for part in environment[name].split(os.pathsep)]
            environment[name] = os.pathsep.join(
                # Any text may look like a path: Path.exists raises for one that no file can have.
                new if new != part and os.path.exists(new) else part  # noqa: PTH110
                for part, new in led
            )
        if inner is not None:
            folder = to / inner
            environment["PWD"] = str(folder)
        arguments = tuple(map(lead, self.arguments))
        return replace(self, folder=folder, arguments=arguments, environment=environment)


def options_of_cells(typed: Sequence[str], environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the options of a call, with the words after them, that may change what a cell runs."""
    words = [*shlex.split(environ.get("PYTEST_ADDOPTS", "")), *typed, ""]
    pairs = (pair for pair in itertools.pairwise(words) if _OF_CELLS.match(pair[0]))
    return [(word, "" if "=" in word or after.startswith("-") else after) for word, after in pairs]


def less_ours(arguments: Iterable[str]) -> tuple[str, ...]:
    """Return pytest's arguments without those that are for the calling session alone."""
    kept: list[str] = []
    tokens = iter(arguments)
    for token in tokens:
        name, has_value, _ = token.partition("=")
        if token == "--":
            kept += [token, *tokens]
        elif not name.startswith(_OURS) or name.removeprefix(_OURS) in _HANDED_ON:
            kept.append(token)
        elif not has_value:
            next(tokens, None)
    return tuple(kept)


def interpreter_options(call: Sequence[str]) -> tuple[str, ...]:
    """Return the options of the interpreter in a call of it, as a launch can be given them."""
    found: list[str] = []
    tokens = iter(call[1:])
    for token in tokens:
        if not token.startswith("-"):
            break
        if token.startswith("--"):
            found += [token, next(tokens, "")]
            continue
        for place, letter in enumerate(token[1:], start=2):
            if letter in "cm":
                return tuple(found)
            if letter in "WX":
                found += [f"-{letter}", token[place:] or next(tokens, "")]
                break
            found += _LETTERS.get(letter, (f"-{letter}",))
    return tuple(found)
