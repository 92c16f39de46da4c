"""Nothing that a file holds is ever run: no pickle, no eval, no shell. Own ranks are excepted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "perfsuite"
SOURCES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}

# Each can run what it reads.
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
EVALUATORS = {"eval", "exec", "compile", "__import__"}
LOADERS = {("torch", "load"), ("numpy", "load"), ("np", "load"), ("os", "system"), ("os", "popen")}
# From one process of a session to another, through a pipe or a folder that only this user can read;
# and from rank to rank of a torchrun job through torch's store, as torch's own objects go.
BETWEEN_OWN_PROCESSES = {
    "worker/equivalence/trace/trace.py": {"cloudpickle", "torch.load"},
    "ranks/pickling.py": {"cloudpickle", "pickle"},
    "ranks/torchrun/peers.py": {"pickle"},
    # The states of random generators, which never leave the process that reads them.
    "worker/equivalence/trace/draws.py": {"pickle"},
}


def dangers(tree: ast.AST) -> Iterator[str]:
    """What in a source could run what it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ({alias.name.partition(".")[0] for alias in node.names} & PICKLES)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ({node.module.partition(".")[0]} & PICKLES)
        elif isinstance(node, ast.Call):
            yield from called(node)


def called(call: ast.Call) -> Iterator[str]:
    match call.func:
        case ast.Name(id=name) if name in EVALUATORS:
            yield name
        case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in LOADERS:
            yield f"{module}.{name}"
    for keyword in call.keywords:
        is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        if keyword.arg in ("shell", "allow_pickle") and not is_off:
            yield f"{keyword.arg}="


@pytest.mark.parametrize("name", SOURCES)
def test_no_module_can_run_what_it_reads(name: str) -> None:
    found = set(dangers(ast.parse(SOURCES[name].read_text())))

    assert found == BETWEEN_OWN_PROCESSES.get(name, set())


@pytest.mark.parametrize(
    ("source", "danger"),
    [
        ("import pickle", "pickle"),
        ("from joblib.numpy_pickle import load", "joblib"),
        ("eval(text)", "eval"),
        ("torch.load(path)", "torch.load"),
        ("subprocess.run(text, shell=True)", "shell="),
        ("numpy.load(path, allow_pickle=True)", "allow_pickle="),
    ],
)
def test_each_danger_would_be_seen(source: str, danger: str) -> None:
    assert danger in set(dangers(ast.parse(source)))
