"""Whether each arm loaded its own code, from trees on the disk and what launches report."""

from __future__ import annotations

import math
import sys
import zipfile
from collections.abc import Collection
from pathlib import Path

import pytest
from git_checkouts import git

from perfsuite.gate.arms.arm import Arm, Launch, Loaded
from perfsuite.gate.provenance import symmetry
from perfsuite.gate.provenance.installed import is_any_installed
from perfsuite.gate.provenance.symmetry import find_asymmetry

VENVS = ("base", "python3.12"), ("head", "python3.13")
PLACES = {
    "pkg": "pkg/__init__.py",
    "other": "src/other/__init__.py",
    "alone": "alone.py",
    "lone": "src/lone.py",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two trees, each with a package that differs, one in src, a module, tests and benchmarks."""
    # What these tests write was there before the session.
    monkeypatch.setattr(symmetry, "_began_s", lambda: math.inf)
    folder = tmp_path.resolve()
    for tree in ("base", "head"):
        for package in ("pkg", "pkg/inner", "src/other", "tests", "benchmarks"):
            (folder / tree / package).mkdir(parents=True)
            (folder / tree / package / "__init__.py").touch()
        for module in ("alone.py", "setup.py", "src/lone.py"):
            (folder / tree / module).touch()
        (folder / tree / "pkg/__init__.py").write_text(tree)
    return folder


def add(folder: Path, path: str, text: str = "") -> None:
    """Put a file into both trees."""
    for tree in ("base", "head"):
        (folder / tree / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / tree / path).write_text(text)


def install(folder: Path, distribution: str, path: str, text: str = "") -> str:
    """Put a file into site-packages, as pip does for a distribution; return where it is."""
    record = folder / "site-packages" / f"{distribution}-1.dist-info"
    for file, content in {
        record / "METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n",
        record / "RECORD": f"{path},,\n",
        folder / "site-packages" / path: text,
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return f"site-packages/{path}"


def compare(
    folder: Path,
    base: Collection[str],
    head: Collection[str],
    *,
    trees: tuple[str, str] = ("base", "head"),
    python: str = sys.executable,
    base_python: str | None = None,
    alone: Collection[str] = (),
    old: Collection[str] = (),
    roots: Collection[str] = (),
) -> str | None:
    """What is wrong with launches that loaded files relative to the folder."""
    launches = []
    for name, tree, loaded in zip(("base", "head"), trees, (base, head), strict=True):
        arm = Arm(
            name=name,
            tree=folder / tree,
            top=folder / tree.removesuffix("/perf"),
            import_roots=tuple(folder / root for root in roots),
            pytest_arguments=(),
            python=(base_python or python) if name == "base" else python,
            alone=frozenset(map(Path, alone if name == "head" else ())),
        )
        files, written_before = (
            frozenset(str(folder / file) for file in names) for names in (loaded, old)
        )
        launches.append(Launch(arm=arm, loaded=Loaded(files=files, old=written_before)))
    return find_asymmetry(*launches)


def is_shared_wrongly(folder: Path, file: str, place: str) -> bool:
    """Whether that both loaded a file is said to be wrong because of one in the tree."""
    wrong = compare(folder, [file], [file])
    assert wrong is None or wrong == (
        f"both arms loaded {folder}/{file}, although the tree has {place}; name its folder in "
        "pytest's pythonpath, uninstall that copy, or give the base an interpreter of its own with "
        "--base-python (pytest: --perf-base-python)"
    )
    return wrong is not None


def test_two_trees_that_loaded_their_own_code_are_fine(folder: Path) -> None:
    installed = "elsewhere/site-packages/numpy/__init__.py"
    base, head = (
        [f"{tree}/{place}" for place in PLACES.values()] + [installed] for tree in ("base", "head")
    )

    assert compare(folder, base, head) is None


# --- what an earlier run left in head's checkout ---


@pytest.mark.parametrize(
    ("alone", "old", "is_wrong"),
    [
        ("cache/a.pt", "cache/a.pt", True),
        ("cache", "cache/a.pt", True),
        ("generated.py", "generated.py", True),
        ("cache/a.pt", "", False),  # the launch had written it
        ("cache/b.pt", "cache/a.pt", False),  # this session had written it
        ("shop.egg-info/entry_points.txt", "shop.egg-info/entry_points.txt", False),
    ],
)
def test_what_head_alone_had_and_read_is_named(
    folder: Path, alone: str, old: str, is_wrong: bool
) -> None:
    read, of_base = f"head/{old}", f"base/{old}"  # which the base's launch has made

    found = compare(folder, [of_base], [read], alone=[alone], old=[read])

    assert (found is not None) == is_wrong
    if is_wrong:
        assert f"the head arm loaded {old}, " in str(found)


# --- code of the other tree ---


@pytest.mark.parametrize("loader", ["base", "head"])
def test_an_arm_that_loaded_the_others_file_is_named(folder: Path, loader: str) -> None:
    other = {"base": "head", "head": "base"}[loader]
    file = f"{other}/pkg/__init__.py"

    assert compare(folder, [file], [file]) == (
        f"the {loader} arm loaded {folder}/{file}, which is {other}'s; is it installed in editable "
        "mode, or behind a link with an absolute path? "
        "Name its folder in pytest's pythonpath or in PYTHONPATH, or have the code find it "
        "beside itself"
    )


@pytest.mark.parametrize("began_s", [math.inf, 0.0])
def test_data_of_heads_checkout_that_neither_tracks_is_shared_unless_the_session_made_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, began_s: float
) -> None:
    monkeypatch.setattr(symmetry, "_began_s", lambda: began_s)
    (folder / "head/.cache").mkdir()
    (folder / "head/.cache/plan.json").write_text("{}")

    found = compare(folder, ["head/.cache/plan.json"], ["head/.cache/plan.json"])

    assert found == (
        None
        if began_s
        else f"the base arm loaded {folder}/head/.cache/plan.json, which is head's; have the code "
        "find it beside itself, or name it in pytest's perf_share where both may use head's"
    )


@pytest.mark.parametrize("place", ["pkg/inner/__init__.py", "pkg/lost.py"])
def test_a_file_of_the_other_tree_that_the_own_has_alike_is_fine(folder: Path, place: str) -> None:
    (folder / "head/pkg/lost.py").touch()

    is_wrong = compare(folder, [f"head/{place}"], [f"head/{place}"]) is not None

    assert is_wrong == (place == "pkg/lost.py")


def test_a_base_tree_inside_of_heads_is_distinguished_from_it(folder: Path) -> None:
    (folder / "head/old/pkg").mkdir(parents=True)
    trees = "head/old", "head"
    head = ["head/pkg/__init__.py"]

    assert compare(folder, ["head/old/pkg/__init__.py"], head, trees=trees) is None
    assert "the base arm loaded" in str(compare(folder, head, head, trees=trees))


def test_arms_of_one_tree_may_load_the_same(folder: Path) -> None:
    same = ["head/pkg/__init__.py"]

    assert compare(folder, same, same, trees=("head", "head")) is None


def test_a_tree_is_known_through_symbolic_links(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "head")
    same = ["head/pkg/__init__.py"]

    assert "which is head's" in str(compare(folder, same, same, trees=("base", "link")))


@pytest.mark.parametrize(("changed", "is_wrong"), [("x = 2", True), ("x = 1", False)])
def test_changed_code_beside_the_root_must_be_each_arms_own(
    folder: Path, changed: str, is_wrong: bool
) -> None:
    add(folder, "perf/conftest.py")
    add(folder, "shop/__init__.py", "x = 1")
    (folder / "head/shop/__init__.py").write_text(changed)
    same = ["head/shop/__init__.py"]

    found = compare(folder, same, same, trees=("base/perf", "head/perf"))

    assert (found is not None) == is_wrong


def test_an_interpreter_in_the_checkout_is_not_under_test(folder: Path) -> None:
    library = folder / "head/env/lib/json.py"
    library.parent.mkdir(parents=True)
    library.touch()
    same = ["head/env/lib/json.py"]

    assert compare(folder, same, same, python=str(folder / "head/env/bin/python")) is None


@pytest.mark.parametrize("base_tree", ["base", "head"])
@pytest.mark.parametrize(
    ("program", "is_wrong"),
    [
        ("new/bin/torchrun", True),
        ("new/bin/python3", True),
        ("old/bin/torchrun", False),
        ("new/bin/run.sh", False),
    ],
)
def test_a_base_with_an_interpreter_of_its_own_runs_no_other(
    folder: Path, program: str, is_wrong: bool, base_tree: str
) -> None:
    (folder / "python3.11").touch()
    for environment in ("old", "new"):  # of one Python
        (folder / environment / "bin").mkdir(parents=True)
        (folder / environment / "bin/python").symlink_to(folder / "python3.11")
        (folder / environment / "bin/python3").symlink_to("python")
        script = folder / environment / "bin/torchrun"
        script.write_text(f"#!{folder}/{environment}/bin/python3\n")
        script.with_name("run.sh").write_text("#!/bin/sh\n")
    base, head = (
        Launch(
            arm=Arm(
                name=name,
                tree=folder / tree,
                import_roots=(),
                pytest_arguments=(),
                python=str(folder / environment / "bin/python"),
            ),
            loaded=Loaded(programs=frozenset([str(folder / program)])),
        )
        for name, tree, environment in (("base", base_tree, "old"), ("head", "head", "new"))
    )

    expected = (
        f"the base arm ran {folder}/{program} with head's interpreter, and not with "
        f"{folder}/old/bin/python, which --base-python names; install it there, and call it by its "
        "name alone"
    )
    assert find_asymmetry(base, head) == (expected if is_wrong else None)


@pytest.mark.parametrize("is_script", [True, False])
def test_a_script_in_place_of_the_bases_interpreter_may_run_heads(
    folder: Path, is_script: bool
) -> None:
    wrapper, python = folder / "wrapper", str(folder / "new/bin/python")
    wrapper.write_text(f"#!/bin/sh\nexec {python}\n" if is_script else "ELF")
    base, head = (
        Launch(
            arm=Arm(
                name=name, tree=folder, import_roots=(), pytest_arguments=(), python=interpreter
            ),
            loaded=Loaded(programs=frozenset([python])),
        )
        for name, interpreter in (("base", str(wrapper)), ("head", python))
    )

    assert (find_asymmetry(base, head) is None) == is_script


# --- one file for both arms, which is a copy of a module of the tree ---


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("pkg/__init__.py", "venv/site-packages/pkg/__init__.py"),
        ("src/other/__init__.py", "elsewhere/other/__init__.py"),
        ("alone.py", "elsewhere/alone.py"),
        ("src/lone.py", "elsewhere/lone.py"),
        ("lib/calc.py", "head/.venv/lib/site-packages/calc.py"),
        ("lib/fast.pyx", "site-packages/fast.cpython-311-x86_64-linux-gnu.so"),
        ("python/acme/core/__init__.py", "site-packages/acme/core/__init__.py"),
        ("acme/deep/one.py", "site-packages/acme/deep/one.py"),
        ("packages/foo/lib/deep/__init__.py", "elsewhere/site-packages/deep/__init__.py"),
    ],
)
def test_a_copy_of_a_module_of_the_tree_in_both_arms_is_wrong(
    folder: Path, path: str, file: str
) -> None:
    add(folder, path)
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("a copy")
    if file.endswith("__init__.py"):
        (folder / file).touch()

    assert is_shared_wrongly(folder, file, path)


@pytest.mark.parametrize(("path", "is_wrong"), [("lib/calc.py", True), ("pkg/calc.py", False)])
def test_an_archive_on_the_path_of_both_arms_may_have_a_module_of_the_tree(
    folder: Path, path: str, is_wrong: bool
) -> None:
    add(folder, path)
    with zipfile.ZipFile(folder / "shop.zip", "w") as archive:
        archive.writestr("calc.py", "")

    assert is_shared_wrongly(folder, "shop.zip", path) == is_wrong


@pytest.mark.parametrize(
    "file",
    [
        *(f"elsewhere/{name}/__init__.py" for name in ("inner", "tests", "benchmarks", "numpy")),
        *("elsewhere/setup.py", "elsewhere/conftest.py", "python/json/__init__.py"),
        "head/.venv/lib/python3.11/site-packages/numpy/__init__.py",
        *("site-packages/six.py", "site-packages/flash/__init__.py", "bin/lone"),
    ],
)
def test_what_is_no_copy_may_be_shared(folder: Path, file: str) -> None:
    """Such as a name of Python's own, a program, a copy in a package, and what head alone has."""
    for path in ("json/__init__.py", "conftest.py", "pkg/six.py"):
        add(folder, path)
    (folder / "head/third_party/flash").mkdir(parents=True)
    (folder / "head/third_party/flash/__init__.py").touch()
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_bytes(b"\x7fELF")

    assert compare(folder, [file], [file]) is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[project]\nname = "My_Shop"\n'),
        ("setup.cfg", "[metadata]\nname = my-shop\n"),
        ("packages/one/setup.py", "from setuptools import setup\nsetup(name='my.shop')\n"),
    ],
)
def test_an_installed_project_of_the_tree_is_known_by_its_name(
    folder: Path, file: str, text: str
) -> None:
    add(folder, file, text)
    add(folder, "lib/calc.py", "new = 1")

    assert is_shared_wrongly(folder, install(folder, "my-shop", "calc.py"), "lib/calc.py")


def test_what_a_project_of_the_tree_has_compiled_and_installed_is_one_for_both(
    folder: Path,
) -> None:
    """Such as an extension that no module of the tree is named after."""
    add(folder, "pyproject.toml", '[project]\nname = "shop"\n')
    built = install(folder, "shop", "_fast.cpython-311-x86_64-linux-gnu.so", "\x7fELF")
    other = install(folder, "numpy", "_core.cpython-311-x86_64-linux-gnu.so", "\x7fELF")

    assert compare(folder, [other], [other]) is None
    assert compare(folder, [other, built], [other, built]) == (
        f"both arms loaded {folder}/{built}, which shop has installed; build it in the base's "
        "tree with --base-build CMD (pytest: --perf-base-build), or give the base an interpreter "
        "of its own with --base-python (pytest: --perf-base-python)"
    )


@pytest.mark.parametrize(
    ("place", "info", "is_wrong"),
    [
        ("head", '"dir_info": {}', True),
        ("head/csrc", '"dir_info": {}', True),
        ("head2", '"dir_info": {}', False),
        ("head/wheels/fast-1.whl", '"archive_info": {}', False),
    ],
)
def test_what_was_installed_from_a_folder_of_the_tree_is_of_its_project_whatever_the_name(
    folder: Path, place: str, info: str, is_wrong: bool
) -> None:
    add(folder, "setup.py", "setup(name=NAME)")
    built = install(folder, "fast", "fast_cuda.cpython-311-x86_64-linux-gnu.so", "\x7fELF")
    origin = folder / "site-packages" / "fast-1.dist-info" / "direct_url.json"
    origin.write_text(f'{{{info}, "url": "{(folder / place).as_uri()}"}}')

    wrong = compare(folder, [built], [built])

    assert (wrong is not None) == is_wrong
    assert wrong is None or "which fast has installed" in wrong


def test_the_base_may_not_run_heads_copy_of_what_head_renamed(folder: Path) -> None:
    add(folder, "pyproject.toml", '[project]\nname = "shop"\n')
    (folder / "head/acme").mkdir()
    (folder / "head/acme/new.py").touch()
    copy = install(folder, "shop", "acme/new.py")

    wrong = compare(folder, [copy], ["head/acme/new.py"], roots=("head",))

    assert str(wrong).startswith(
        f"the base arm loaded {folder}/{copy}, as its commit lacks acme/new.py, which the head arm "
        "loaded; uninstall that copy, or give the base "
    )


def test_another_project_may_have_a_module_that_is_called_as_one_of_the_tree(folder: Path) -> None:
    add(folder, "pyproject.toml", '[project]\nname = "shop"\n')
    add(folder, "experiments/datasets/__init__.py")
    add(folder, "third_party/six.py", "the same")
    shared = [
        install(folder, "datasets", "datasets/__init__.py"),
        install(folder, "six", "six.py", "the same"),
    ]

    assert compare(folder, shared, shared) is None


def test_a_package_of_a_linux_distribution_has_no_list_of_files(folder: Path) -> None:
    add(folder, "pyproject.toml", '[project]\nname = "shop"\n')
    add(folder, "ci/yaml/__init__.py")
    record = folder / "dist-packages" / "PyYAML-6.egg-info"
    for path, text in {
        record / "PKG-INFO": "Metadata-Version: 1.0\nName: PyYAML\nVersion: 6\n",
        record / "top_level.txt": "_yaml\nyaml\n",
        folder / "dist-packages/yaml/__init__.py": "",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shared = ["dist-packages/yaml/__init__.py"]

    assert compare(folder, shared, shared) is None


@pytest.mark.parametrize(
    ("text", "is_wrong"), [("price = 1\r\n", True), ("price = 2\n", False)], ids=["same", "other"]
)
def test_where_no_project_says_its_name_equal_contents_decide(
    folder: Path, text: str, is_wrong: bool
) -> None:
    add(folder, "lib/calc.py", "price = 1\n")
    calc = install(folder, "calc", "calc.py")
    (folder / calc).write_bytes(text.encode())

    assert is_shared_wrongly(folder, calc, "lib/calc.py") == is_wrong


def test_a_copy_may_be_of_a_project_that_computes_its_name(folder: Path) -> None:
    add(folder, "setup.py", "setup(name=NAME, version=VERSION)")
    add(folder, "lib/calc.py", "price = 1\n")

    assert is_shared_wrongly(folder, install(folder, "calc", "calc.py"), "lib/calc.py")


NAMED = "[project]\nname = 'tools'\n[[tool.uv.index]]\nname = 'pytorch-cpu'\n"


@pytest.mark.parametrize(
    ("setup", "is_wrong"),
    [
        *dict.fromkeys(("setup(name=NAME)", "setup(**found)"), True).items(),
        ("setup(name=about['name'], ext_modules=[Extension(name='shop._C', sources=[])])", True),
        *dict.fromkeys(("setup()", "setup(name='shop', **more)"), False).items(),
        *dict.fromkeys(("setup(", "shop = 1", f"a{'.b()' * 2000}"), False).items(),
    ],
)
def test_no_other_name_in_a_projects_files_is_taken_for_that_which_setup_py_computes(
    folder: Path, setup: str, is_wrong: bool
) -> None:
    add(folder, "setup.py", f"import setuptools\nsetuptools.{setup}")
    add(folder, "pyproject.toml", NAMED)
    add(folder, "lib/calc.py", "price = 1\n")

    copy = install(folder, "calc", "calc.py", "price = 2\n")

    assert is_shared_wrongly(folder, copy, "lib/calc.py") == is_wrong


@pytest.mark.parametrize(("distribution", "is_wrong"), [("calc", False), ("Tools", True)])
def test_a_name_that_another_folders_setup_py_computes_says_nothing(
    folder: Path, distribution: str, is_wrong: bool
) -> None:
    add(folder, "third_party/setup.py", "setup(name=NAME)")
    add(folder, "pyproject.toml", "[tool.poetry]\nname = 'tools'\n")
    add(folder, "lib/calc.py")

    copy = install(folder, distribution, "calc.py", "new")

    assert is_shared_wrongly(folder, copy, "lib/calc.py") == is_wrong


def test_data_of_a_submodule_of_heads_checkout_are_heads(folder: Path) -> None:
    (folder / "part").mkdir()
    (folder / "part" / "n.yaml").write_text("n: 1")
    git(folder / "part", "init", "--quiet")
    git(folder / "part", "add", "--all")
    git(folder / "part", "commit", "--quiet", "--message", "data")
    for tree in ("base", "head"):
        git(folder / tree, "init", "--quiet")
        allowed = ("-c", "protocol.file.allow=always")
        git(folder / tree, *allowed, "submodule", "--quiet", "add", str(folder / "part"), "part")
    (folder / "base/part/n.yaml").write_text("n: 2")

    found = compare(folder, ["head/part/n.yaml"], ["head/part/n.yaml"])

    assert f"the base arm loaded {folder}/head/part/n.yaml, which is head's" in str(found)


@pytest.mark.parametrize("place", ["head", "head/lib", "elsewhere"])
def test_a_process_that_cannot_say_what_it_loads_must_not_work_in_heads_checkout(
    folder: Path, place: str
) -> None:
    arms = [
        Arm(
            name=name,
            tree=folder / name,
            import_roots=(),
            pytest_arguments=(),
            python=sys.executable,
        )
        for name in ("base", "head")
    ]
    command = f"python3 train.py, in {folder}/{place}"
    own = f"{folder}/head/.venv/bin/python -I -c pass"
    silent = Loaded(silent=frozenset({"python3 log in.py", own, command}))

    found = find_asymmetry(Launch(arm=arms[0], loaded=silent), Launch(arm=arms[1], loaded=silent))

    told = (
        f"the base arm started '{command}', which is head's checkout, and it cannot say what it "
        "loads; let it not change to an absolute folder, and keep what is on PYTHONPATH, as in "
        "PYTHONPATH=lib:$PYTHONPATH"
    )
    assert found == (None if place == "elsewhere" else told)


@pytest.mark.parametrize("other", ["none", "tracked", "of the base", "a link"])
def test_an_environment_that_head_has_and_the_base_lacks_has_other_packages(
    folder: Path, other: str
) -> None:
    file, common = ".venv/lib/site-packages/torch/nn.py", "site-packages/torch/nn.py"
    trees = ("base/", "head/") if other == "of the base" else ("head/",)
    for place in (common, *(f"{tree}{file}" for tree in trees)):
        (folder / place).parent.mkdir(parents=True)
        (folder / place).touch()
    for tree in trees:
        (folder / tree / ".venv/pyvenv.cfg").touch()
    if other == "a link":
        (folder / "head" / file).unlink()
        (folder / "head" / file).symlink_to(folder / common)
    git(folder / "head", "init", "--quiet")
    if other == "tracked":
        git(folder / "head", "add", ".venv")

    found = compare(folder, [common], [f"head/{file}", common])

    told = (
        f"the head arm loaded {folder}/head/{file}, and the base arm {folder}/{common}, so that "
        "they ran with different packages; name a virtual environment of the checkout by an "
        "absolute path, or give the base an interpreter of its own with --base-python (pytest: "
        "--perf-base-python)"
    )
    assert found == (told if other == "none" else None)


@pytest.mark.parametrize("case", ["two of one Python", "the base's own", "made by a launch"])
def test_environments_that_are_meant_to_differ_are_fine(folder: Path, case: str) -> None:
    """The base has one by --base-python or --base-build, or each launch made its own in TMPDIR."""
    places = {arm: f"{arm}/.venv/lib/site-packages/torch/nn.py" for arm in ("base", "head")}
    if case == "two of one Python":
        places["base"] = "old/lib/site-packages/torch/nn.py"
    elif case == "made by a launch":
        of_launch = "head/tmp/perfsuite-7-pair-1/{}/site-packages/torch/nn.py"
        places = {arm: of_launch.format(arm) for arm in places}
    else:
        places["base"] = places["base"].replace("/lib/", "/lib/python3.12/")
    for place in places.values():
        (folder / place).parent.mkdir(parents=True)
        (folder / place).touch()
    pythons = [folder / environment / "bin/python" for environment in ("old", "new")]
    for python in pythons:
        python.parent.mkdir(parents=True, exist_ok=True)
        python.symlink_to(sys.executable)
    of_base, of_head = map(str, pythons)

    found = compare(
        folder,
        [places["base"]],
        [places["head"]],
        python=of_head,
        base_python=of_base if case == "two of one Python" else None,
    )

    assert found is None


@pytest.mark.parametrize("also", ["site-packages", "zzz/site-packages"])
def test_what_the_base_has_of_its_own_counts_whatever_else_it_loaded(
    folder: Path, also: str
) -> None:
    """pytest loads a package, too; which of two places is met first is as a set has it."""
    ours, theirs = (f"{tree}/.venv/lib/{version}/site-packages/yaml.py" for tree, version in VENVS)

    found = compare(folder, [f"{also}/yaml.py", ours], [f"{also}/yaml.py", theirs])

    assert found is None


@pytest.mark.parametrize(("leads_to", "found"), [("more", None), ("../../../../src", "a.pth")])
def test_only_a_path_file_that_leads_to_code_of_the_tree_is_an_installation(
    tmp_path: Path, leads_to: str, found: str | None
) -> None:
    site = tmp_path / ".venv/lib/python3/site-packages"
    (site / "more").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    (site / "a.pth").write_text(f"import os\n# a comment\n\n/nowhere\n{leads_to}\n")

    assert is_any_installed(tmp_path, str(tmp_path / ".venv/bin/python"), []) == found


@pytest.mark.parametrize(
    ("source", "is_read"), [("pkg/inner/run.py", True), ("conf.yaml", True), ("data.bin", False)]
)
def test_what_the_base_lacks_is_named_by_code_and_settings_and_not_by_data(
    folder: Path, source: str, is_read: bool
) -> None:
    # Data may be far larger than memory.
    add(folder, source, "PATH = 'packed.pt'\n")
    (folder / "head" / source).write_text("PATH = None\n")
    (folder / "head" / "packed.pt").touch()

    found = compare(folder, [f"base/{source}"], [f"head/{source}"], alone=["packed.pt"])

    told = f"the base's {source} names packed.pt, which git does not track, "
    assert (found or "").startswith(told) == is_read
