"""Whether the tests still see the mistakes that they saw: a hundred fixed mutants, killed or not.

python -m pip install 'cosmic-ray==8.7.*'
python benchmarks/mutants.py --results after.jsonl
python benchmarks/mutants.py --results after.jsonl --before before.jsonl

A mutant is one mutation of cosmic-ray's in one of eight modules, and is killed where that module's
tests fail or take too long. mutants.json holds the hundred, drawn once (--draw) from a fixed seed:
as many of each module, at most one in a place. They stay the same mutants where modules move,
because each is known by its module's label, its definition, its operator, its order there, and the
line before and after; see `find`. Where a line is written anew, its mutant follows by hand, or is
chosen anew in the same definition: tests/packaging/test_mutants.py wants every line in its place.
Its number is then another mutant's, so that results compare under one mutants.json alone.
--layout names a TOML file in the place of `LAYOUT`, such as of an older commit: a table of files,
tests and names for each label.

Left out, because no test can see them or every test does: annotations, which are not evaluated
(msgspec's are, but hold no arithmetic); what is for type checkers alone; `|` between the types of
an alias; a signature's bare `*` and `/`; what is no Python. cosmic-ray leaves docstrings alone. Its
two operators on variables, which draw at random themselves, are not used.

Each mutant is tested in a copy of the checkout; results are appended as they come, and what has
one is not tested again. Exits with 1 if a mutant cannot be found, or survives that was killed.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Final

import typer

ROOT: Final = Path(__file__).resolve().parents[1]
DRAWN: Final = Path(__file__).with_suffix(".json")
SEED: Final = 20240
NUM_MUTANTS: Final = 100
# The slowest of the tests take ten seconds.
TIME_LIMIT_S: Final = 300
# Of a line that need be no Python by itself: a bracket is a token, and other signs are in a row.
_TOKEN: Final = re.compile(r"\w+|[()\[\]{}]|[^\w\s()\[\]{}]+")


@dataclass(frozen=True, kw_only=True)
class Module:
    """What was one module when the mutants were drawn.

    Attributes:
        files: Where its definitions are now.
        tests: The files or folders of tests that cover it, the quick ones.
        names: What was renamed since, old name to new.
    """

    files: Sequence[str]
    tests: Sequence[str]
    names: Mapping[str, str] = field(default_factory=dict)


LAYOUT: Final = {
    "rule": Module(
        files=(
            "perfsuite/stats/sequential.py",
            "perfsuite/stats/evidence.py",
            "perfsuite/stats/spending.py",
        ),
        tests=(
            "tests/stats/test_sequential.py",
            "tests/stats/test_evidence.py",
            "tests/stats/test_spending.py",
            "tests/stats/test_error_rates.py",
        ),
    ),
    "screen": Module(
        files=("perfsuite/gate/baselines/screen.py",),
        tests=(
            "tests/gate/baselines/test_screen.py",
            "tests/gate/baselines/test_stored_verdict.py",
        ),
    ),
    "counts": Module(
        files=("perfsuite/gate/judge/counts.py",),
        tests=("tests/gate/judge/test_counts.py", "tests/gate/judge/test_judge.py"),
    ),
    "limits": Module(
        files=("perfsuite/worker/equivalence/limits.py",),
        tests=(
            "tests/worker/equivalence/test_limits.py",
            "tests/worker/equivalence/test_comparison.py",
        ),
    ),
    "comparison": Module(
        files=("perfsuite/worker/equivalence/comparison.py",),
        tests=(
            "tests/worker/equivalence/test_comparison.py",
            "tests/worker/equivalence/test_limits.py",
            "tests/worker/equivalence/test_diagnosis.py",
            "tests/worker/equivalence/test_proof.py",
        ),
        names={"Evidence": "Discrepancy"},
    ),
    "records": Module(
        files=(
            "perfsuite/records/cell.py",
            "perfsuite/records/equivalence.py",
            "perfsuite/records/verdict.py",
            "perfsuite/system/environment.py",
            "perfsuite/system/untrusted.py",
        ),
        tests=("tests/records/test_cell.py", "tests/gate/judge/test_judge.py"),
    ),
    "accepted": Module(
        files=("perfsuite/gate/baselines/accepted.py", "perfsuite/records/cell.py"),
        tests=("tests/gate/baselines/test_accepted.py", "tests/gate/test_history_exceptions.py"),
    ),
    "overlay": Module(
        files=("perfsuite/gate/git/overlay.py",), tests=("tests/gate/git/test_overlay.py",)
    ),
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A mutation, wherever its module is now.

    Attributes:
        label: Of the module.
        definition: Qualified name of the innermost function, class, field or constant.
        operator: cosmic-ray's name of it.
        arguments: The operator's; {} of one that takes none.
        order: Which of the operator's mutations in the definition it is, from 0.
        of: How many those are.
        line: Where it begins, without comment, each run of white space one blank.
        mutated: That line of the mutated source, "" where the mutation removes lines.
    """

    label: str
    definition: str
    operator: str
    arguments: Mapping[str, Any]
    order: int
    of: int
    line: str
    mutated: str


@dataclass(frozen=True)
class Source:
    """One file of a module."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Without comments and blanks that mean nothing, the first at 0."""
        lines = self.text.splitlines()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
        return [" ".join(line.split()) for line in lines]


@dataclass(frozen=True)
class Site:
    """One mutation that an operator makes of a file as it is."""

    source: Source
    definition: str
    operator: str
    occurrence: int
    order: int
    begin: tuple[int, int]
    end: tuple[int, int]

    @property
    def line(self) -> str:
        """The line where it begins."""
        return self.source.lines[self.begin[0] - 1]

    @cached_property
    def mutated_text(self) -> str:
        """The whole file, mutated."""
        # Imported here and in `sites_of`, because our tests read this file without cosmic-ray.
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        text = mutate_code(self.source.text, get_operator(self.operator)(), self.occurrence)
        assert text is not None
        return str(text)

    @property
    def mutated(self) -> str:
        """What becomes of the line; "" where the mutation removes lines."""
        lines = Source(self.source.path, self.mutated_text).lines
        return lines[self.begin[0] - 1] if len(lines) == len(self.source.lines) else ""

    def is_python(self) -> bool:
        """Whether the mutated file compiles."""
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            try:
                compile(self.mutated_text, self.source.path, "exec")
            except SyntaxError:
                return False
        return True


def main(
    results: Annotated[Path | None, typer.Option(help="JSON lines, appended to.")] = None,
    before: Annotated[Path | None, typer.Option(help="Results to compare with.")] = None,
    layout: Annotated[Path | None, typer.Option(help="TOML in the place of LAYOUT.")] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Draw the mutants anew.")] = False,
) -> None:
    """Test every mutant that has no result yet; say which survive."""
    modules: Mapping[str, Module] = LAYOUT
    if layout is not None:
        tables = tomllib.loads(layout.read_text())
        modules = {label: Module(**table) for label, table in tables.items()}
    sites = {label: list(sites_of(module.files)) for label, module in modules.items()}
    if draw:
        drawn = [asdict(mutant) for mutant in draw_mutants(sites)]
        DRAWN.write_text(json.dumps(drawn, indent=1) + "\n")
        return
    if results is None:
        raise typer.BadParameter("name the file of the results", param_hint="--results")
    mutants = [Mutant(**fields) for fields in json.loads(DRAWN.read_text())]
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        copy_checkout(checkout)
        run_missing(mutants, sites, modules, checkout, results)
    sys.exit(summarise(mutants, read_results(results), read_results(before) if before else {}))


def sites_of(files: Iterable[str]) -> Iterator[Site]:
    """Every mutation of the files of one module that is not left out."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    orders: Counter[tuple[str, str]] = Counter()
    for path in files:
        source = Source(path, (ROOT / path).read_text())
        nodes = list(ast_nodes(get_ast(source.text)))
        for name in operator_names():
            if get_operator(name).arguments():
                continue
            operator = get_operator(name)()
            found = ((node, place) for node in nodes for place in operator.mutation_positions(node))
            for occurrence, (node, (begin, end)) in enumerate(found):
                at = node if node.start_pos == begin else node.get_leaf_for_position(begin)
                if not is_left_out(at):
                    key = (definition_of(at), name)
                    yield Site(source, *key, occurrence, orders[key], begin, end)
                    orders[key] += 1


def with_parents(node: Any) -> Iterator[tuple[Any, Any]]:
    """Each node up to the top, with its parent."""
    while node.parent is not None:
        yield node, node.parent
        node = node.parent


def definition_of(node: Any) -> str:
    """The qualified name of what a node of parso's is in; "" for a bare statement of a module."""
    names: list[str] = []
    is_local = False
    for child, parent in with_parents(node):
        if child.type in ("funcdef", "classdef"):
            if child.type == "funcdef" and is_local:
                names.pop()
            is_local = False
            names.append(child.name.value)
        elif child.type == "expr_stmt" and (defined := child.get_defined_names()):
            is_local = True
            names.append(defined[0].get_code(include_prefix=False))
        elif parent.type == "decorated" and child is parent.children[0]:
            decorated = parent.children[-1]
            is_async = decorated.type == "async_funcdef"
            names.append((decorated.children[-1] if is_async else decorated).name.value)
    return ".".join(reversed(names))


def is_left_out(node: Any) -> bool:
    """Whether nothing, or everything, could see a mutation of this node."""
    for child, parent in with_parents(node):
        if (
            (parent.type == "annassign" and child is parent.children[1])
            or (parent.type == "tfpdef" and child is parent.children[2])
            or (parent.type == "funcdef" and child is parent.annotation)
            or (parent.type in ("parameters", "lambdef") and child.type == "operator")
            or (child.type == "if_stmt" and is_code(child.children[1], "TYPE_CHECKING"))
            or (child.type == "classdef" and is_code(child.get_super_arglist(), "Protocol"))
        ):
            return True
    return node.type == "operator" and node.value == "|" and is_alias(definition_of(node))


def is_code(node: Any, text: str) -> bool:
    return node is not None and node.get_code(include_prefix=False) == text


def is_alias(definition: str) -> bool:
    """Whether a name is one of a type: such as RecipeValue, and neither _LOOKS nor weigh."""
    return re.fullmatch(r"_?[A-Z][A-Z0-9]*[a-z]\w*", definition) is not None


def draw_mutants(sites: Mapping[str, Sequence[Site]]) -> list[Mutant]:
    """Take the modules in turn, of each a place at random, and there one of its mutations."""
    chance = random.Random(SEED)
    places: dict[str, list[list[Site]]] = {}
    for label, of_module in sites.items():
        by_place: dict[tuple[str, tuple[int, int], tuple[int, int]], list[Site]] = {}
        for site in of_module:
            by_place.setdefault((site.source.path, site.begin, site.end), []).append(site)
        places[label] = list(by_place.values())
        chance.shuffle(places[label])
    drawn: dict[str, list[Mutant]] = {label: [] for label in sites}
    while any(places.values()):
        for label, of_label in places.items():
            if sum(map(len, drawn.values())) == NUM_MUTANTS:
                return [mutant for mutants in drawn.values() for mutant in mutants]
            if of_label:
                site = chance.choice(of_label.pop())
                if site.is_python() and site.mutated_text != site.source.text:
                    drawn[label].append(as_mutant(label, site, sites[label]))
    raise ValueError(f"there are fewer than {NUM_MUTANTS} places")


def as_mutant(label: str, site: Site, of_module: Sequence[Site]) -> Mutant:
    name = (site.definition, site.operator)
    return Mutant(
        label=label,
        definition=site.definition,
        operator=site.operator,
        arguments={},
        order=site.order,
        of=sum((other.definition, other.operator) == name for other in of_module),
        line=site.line,
        mutated=site.mutated,
    )


def find(mutant: Mutant, sites: Sequence[Site], names: Mapping[str, str]) -> tuple[str, Site]:
    """Return where a mutant is now, and what it was recognised by.

    1. "all": definition, order, and the line before and after.
    2. "line": definition and both lines; of several the one whose order is nearest.
    3. "line elsewhere": both lines, in the one other definition that has them.
    4. "order": definition and order, where the operator has as many mutations as it had, and this
       one is of the same token between the same two: lines that come and go leave their number.

    The last two are to be looked at by hand.

    Raises:
        LookupError: None of them.
    """
    definition, line, mutated = mutant.definition, mutant.line, mutant.mutated
    for old, new in names.items():
        word = re.compile(rf"\b{re.escape(old)}\b")
        definition, line, mutated = (word.sub(new, text) for text in (definition, line, mutated))
    alike = [site for site in sites if site.operator == mutant.operator]
    here = [site for site in alike if site.definition == definition]
    same = [site for site in alike if site.line == line and site.mutated == mutated]
    same_here = [site for site in same if site in here]
    if same_here:
        nearest = min(same_here, key=lambda site: abs(site.order - mutant.order))
        return "all" if nearest.order == mutant.order else "line", nearest
    if len(same) == 1:
        return "line elsewhere", same[0]
    if len(here) == mutant.of:
        site = here[mutant.order]
        if change_of(site.line, site.mutated) == change_of(line, mutated):
            return "order", site
    raise LookupError(f"{mutant.label}: {mutant.definition} has no such mutation any more")


def change_of(line: str, mutated: str) -> tuple[list[str], list[str]]:
    """Return the tokens that a mutation replaces, with one on either side, and the new ones."""
    before, after = _TOKEN.findall(line), _TOKEN.findall(mutated)
    begin = num_alike(before, after)
    num_behind = num_alike(before[begin:][::-1], after[begin:][::-1])
    replaced = before[max(begin - 1, 0) : len(before) - num_behind + 1]
    return replaced, after[begin : len(after) - num_behind]


def num_alike(tokens: Sequence[str], others: Sequence[str]) -> int:
    """How many tokens at the begin are the same."""
    pairs = zip(tokens, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def copy_checkout(target: Path) -> None:
    """Copy what git tracks or would add, as it is on the disk."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_missing(
    mutants: Sequence[Mutant],
    sites: Mapping[str, Sequence[Site]],
    modules: Mapping[str, Module],
    checkout: Path,
    results: Path,
) -> None:
    """Test the mutants that have no result, each module's tests first without a mutant."""
    done = read_results(results)
    sound: set[str] = set()
    for number, mutant in enumerate(mutants):
        if number in done:
            continue
        module = modules[mutant.label]
        if mutant.label not in sound:
            outcome, by, _ = run_tests(checkout, module.tests)
            if outcome != "survived":
                raise SystemExit(f"{mutant.label}: its tests fail without a mutant: {by}")
            sound.add(mutant.label)
        result: dict[str, Any] = {"number": number, **asdict(mutant)}
        try:
            found, site = find(mutant, sites[mutant.label], module.names)
        except LookupError:
            result["outcome"] = "not found"
        else:
            place = f"{site.source.path}:{site.begin[0]}"
            outcome, by, took_s = run_tests(checkout, module.tests, site)
            result |= {"outcome": outcome, "by": by, "took_s": took_s}
            result |= {"found": found, "place": place, "line_now": site.line}
        with results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        typer.echo(f"{number + 1:3} {result['outcome']:9} {in_words(result)}")


def run_tests(
    checkout: Path, tests: Sequence[str], site: Site | None = None
) -> tuple[str, str, float]:
    """Return "killed", "timeout" or "survived", the last line of pytest, and the seconds it took.

    In a fresh copy, so that no mutant finds another one's bytecode or Hypothesis's examples.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "checkout"
        shutil.copytree(checkout, copy)
        if site is not None:
            (copy / site.source.path).write_text(site.mutated_text)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        command = [sys.executable, "-m", "pytest", *options, f"--basetemp={folder}/tmp", *tests]
        begin_s = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "timeout", "", TIME_LIMIT_S
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    took_s = round(time.monotonic() - begin_s, 1)
    lines = output.splitlines()
    failed = (line for line in lines if line.startswith(("FAILED", "ERROR")))
    by = next(failed, lines[-1] if lines else "")
    return "killed" if process.returncode else "survived", by, took_s


def read_results(path: Path) -> dict[int, dict[str, Any]]:
    """Return the results so far, by the number of the mutant."""
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(sorted((result["number"], result) for result in map(json.loads, lines)))


def in_words(result: Mapping[str, Any]) -> str:
    place = result.get("place", result["label"])
    operator = result["operator"].removeprefix("core/")
    return f"{place} {result['definition']}: {operator}: {result['line']} -> {result['mutated']}"


def summarise(
    mutants: Sequence[Mutant],
    results: Mapping[int, Mapping[str, Any]],
    before: Mapping[int, Mapping[str, Any]],
) -> bool:
    """Say how many were killed, and which were not; return whether any was lost."""

    def show(title: str, is_one: Callable[[Mapping[str, Any]], bool]) -> int:
        shown = [result for result in results.values() if is_one(result)]
        typer.echo(f"{title}: {len(shown)}")
        for result in shown:
            typer.echo(f"  {result['number'] + 1:3} {in_words(result)}")
        return len(shown)

    killed = Counter(result["label"] for result in results.values() if is_killed(result))
    of_each = Counter(mutant.label for mutant in mutants)
    for label, number in of_each.items():
        typer.echo(f"{label}: {killed[label]} of {number} killed")
    typer.echo(f"together: {killed.total()} of {len(mutants)} killed")
    show("survivors", lambda result: result["outcome"] == "survived")
    show("recognised by less", lambda result: result.get("found") in ("line elsewhere", "order"))
    num_missing = show("not found", lambda result: result["outcome"] == "not found")
    num_lost = show(
        "killed before, and now not",
        lambda result: is_killed(before.get(result["number"], {})) and not is_killed(result),
    )
    return num_missing + num_lost > 0


def is_killed(result: Mapping[str, Any]) -> bool:
    return result.get("outcome") in ("killed", "timeout")


if __name__ == "__main__":
    typer.run(main)
