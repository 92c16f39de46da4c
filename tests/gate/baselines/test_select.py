"""Baselines: which stored runs are used, why the others are not, and that no save is lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pytest_benchmark.utils import get_machine_id

from perfsuite.errors import SettingError, WriteError
from perfsuite.gate.baselines.select import Choice, Trunk, choose_runs, is_brought, save_run
from perfsuite.plugin.session.saving import put_stamp
from perfsuite.records.run_file import RunStamp
from perfsuite.records.shard import ShardStamp
from perfsuite.system.environment import describe_host

HERE = "0123456789ab"
CELL = "benchmarks/test_a.py::test_a"
COMMIT = "5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b"


def stamp(**changes: Any) -> RunStamp:
    fields: dict[str, Any] = {
        "fingerprint": HERE,
        "probe_s": None,
        "num_failed": 0,
        "is_pull_request": False,
        "verdicts": {CELL: "PASS"},
        "accepted": (),
        **changes,
    }
    return RunStamp(**fields)


def store(
    storage: Path,
    name: str = "0001_run.json",
    *,
    run_stamp: RunStamp | None = None,
    day: int = 1,
    commit: str = COMMIT,
    is_dirty: bool = False,
) -> Path:
    path = storage / get_machine_id() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "datetime": f"2026-11-{day:02}T00:00:00+00:00",
        "commit_info": {"id": commit, "dirty": is_dirty},
        "benchmarks": [{"fullname": CELL, "stats": {"median": 0.1}}],
    }
    put_stamp(content, run_stamp or stamp())
    path.write_text(json.dumps(content, indent=4))
    return path


def used(choice: Choice) -> list[str]:
    return [run.path.name for run in choice.usable]


def refusals(choice: Choice) -> list[tuple[str, str]]:
    return [(run.path.name, run.reason) for run in choice.refused]


def test_every_run_of_the_environment_is_used_with_the_newest_last(tmp_path: Path) -> None:
    store(tmp_path, "0001_a.json", day=3)
    store(tmp_path, "0002_b.json", day=1)
    store(tmp_path, "0010_c.json", day=2)
    store(tmp_path, "notes.json", day=4)

    choice = choose_runs(tmp_path, True, HERE)

    assert used(choice) == ["0002_b.json", "0010_c.json", "0001_a.json"]
    assert choice.refused == ()


def test_a_run_of_another_python_is_refused_by_name_and_not_overlooked(tmp_path: Path) -> None:
    path = tmp_path / "Linux-CPython-3.5-64bit" / "0001_old.json"
    store(tmp_path, run_stamp=stamp(fingerprint="ba9876543210"))
    path.parent.mkdir()
    (tmp_path / get_machine_id() / "0001_run.json").rename(path)

    choice = choose_runs(tmp_path, True, HERE)

    assert [str(run) for run in choice.refused] == [
        f"{path}: was made in another environment: ba9876543210 -> {HERE}"
    ]


def test_another_environment_is_told_by_its_fields(tmp_path: Path) -> None:
    here = describe_host({"NCCL_ALGO": "Ring"}, 2)
    there = msgspec.structs.replace(here, driver="570", knobs={"numpy": here.knobs["numpy"]})
    known = {one.fingerprint: one for one in (here, there)}
    store(tmp_path, run_stamp=stamp(fingerprint=there.fingerprint, environments=known))
    store(tmp_path, "0002_here.json", run_stamp=stamp(fingerprint=here.fingerprint), day=2)
    here = msgspec.structs.replace(here, driver="580")
    store(tmp_path, "0003_here.json", run_stamp=stamp(fingerprint=here.fingerprint), day=3)

    choice = choose_runs(tmp_path, True, here)

    assert used(choice) == ["0003_here.json"]
    assert refusals(choice)[0] == (
        "0001_run.json",
        "was made in another environment: driver 570 -> 580, NCCL_ALGO none -> Ring",
    )
    # As `history --fingerprint` names it.
    assert used(choose_runs(tmp_path, True, there.fingerprint)) == ["0001_run.json"]


@pytest.mark.parametrize(
    ("run_stamp", "reason"),
    [
        (stamp(num_failed=1), "1 of its tests failed"),
        (stamp(is_pull_request=True), "was saved from a pull request"),
        (stamp(verdicts={CELL: "FAIL"}), f"the verdict of its cell {CELL} is FAIL"),
        (stamp(verdicts={CELL: "ERROR"}), f"the verdict of its cell {CELL} is ERROR"),
        (
            stamp(verdicts={CELL: "INVALID"}, accepted=(CELL,)),
            f"the verdict of its cell {CELL} is INVALID",
        ),
        (stamp(fingerprint=None), "does not say in which environment it was made"),
    ],
)
def test_a_run_that_proves_nothing_is_refused(
    tmp_path: Path, run_stamp: RunStamp, reason: str
) -> None:
    store(tmp_path, run_stamp=run_stamp)

    choice = choose_runs(tmp_path, True, HERE)

    assert (used(choice), refusals(choice)) == ([], [("0001_run.json", reason)])


def test_a_run_without_a_stamp_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path)
    content = json.loads(path.read_text())
    del content["perfsuite"]
    path.write_text(json.dumps(content))

    assert refusals(choose_runs(tmp_path, True, HERE)) == [
        (
            "0001_run.json",
            "has no stamp of perfsuite, which says whether its tests passed and where it ran; "
            "save it again with --benchmark-save",
        )
    ]


def test_a_slowdown_that_was_accepted_makes_a_baseline(tmp_path: Path) -> None:
    store(tmp_path, run_stamp=stamp(verdicts={CELL: "FAIL"}, accepted=(CELL,)))

    assert used(choose_runs(tmp_path, True, HERE)) == ["0001_run.json"]


def test_in_a_git_checkout_only_clean_runs_of_the_bases_history_are_used(tmp_path: Path) -> None:
    store(tmp_path, "0001_ours.json", day=1, commit="a" * 40)
    store(tmp_path, "0002_branch.json", day=2, commit="b" * 40)
    store(tmp_path, "0003_dirty.json", day=3, commit="a" * 40, is_dirty=True)
    store(tmp_path, "0004_nowhere.json", day=4, commit="unversioned")
    asked: list[str] = []

    def is_in_history(commit: str) -> bool:
        asked.append(commit)
        return commit.startswith("a")

    choice = choose_runs(tmp_path, True, HERE, Trunk(is_in_history))

    assert used(choice) == ["0001_ours.json"]
    assert refusals(choice) == [
        (
            "0002_branch.json",
            "its commit bbbbbbbbbbbb is not in the base's history "
            "(without a gate: the default branch's)",
        ),
        ("0003_dirty.json", "was made from uncommitted changes"),
        ("0004_nowhere.json", "does not say from which commit it was made"),
    ]
    assert asked == ["b" * 40, "a" * 40]


def test_a_run_that_comes_with_the_change_is_refused_and_makes_room_for_an_older_one(
    tmp_path: Path,
) -> None:
    store(tmp_path, "0001_main.json", day=1)
    mine = store(tmp_path, "0002_mine.json", day=2)

    choice = choose_runs(
        tmp_path, True, HERE, Trunk(brought=frozenset({mine.resolve()})), max_sessions=1
    )

    assert used(choice) == ["0001_main.json"]
    assert refusals(choice) == [
        ("0002_mine.json", "comes with the commits that are judged; it counts once they are merged")
    ]


def test_a_copy_of_a_run_does_not_count_twice(tmp_path: Path) -> None:
    store(tmp_path, "0001_run.json")
    store(tmp_path, "0002_again.json")

    choice = choose_runs(tmp_path, True, HERE)

    assert used(choice) == ["0001_run.json"]
    assert refusals(choice) == [("0002_again.json", "is a copy of 0001_run.json")]


def shard(number: int, num_shards: int = 4) -> ShardStamp:
    return ShardStamp(number=number, num_shards=num_shards, num_cells=8, partition="0123456789ab")


def cut_off(path: Path) -> None:
    """Leave the beginning of a file, up to its first benchmark."""
    path.write_text(path.read_text().partition('"fullname"')[0])


def test_only_as_many_sessions_as_are_needed_are_used_and_no_older_one_is_read(
    tmp_path: Path,
) -> None:
    for day in range(1, 6):
        store(tmp_path, f"{day:04}_run.json", day=day)
    cut_off(store(tmp_path, "0006_broken.json", day=2))
    store(tmp_path, "0007_failed.json", day=1, run_stamp=stamp(num_failed=1))

    choice = choose_runs(tmp_path, True, HERE, max_sessions=3)

    assert used(choice) == ["0003_run.json", "0004_run.json", "0005_run.json"]
    assert choice.refused == ()


def test_a_refused_run_makes_room_for_an_older_one(tmp_path: Path) -> None:
    for day in range(1, 6):
        store(tmp_path, f"{day:04}_run.json", day=day)
    store(tmp_path, "0004_run.json", day=4, run_stamp=stamp(num_failed=1))

    choice = choose_runs(tmp_path, True, HERE, max_sessions=2)

    assert used(choice) == ["0003_run.json", "0005_run.json"]
    assert refusals(choice) == [("0004_run.json", "1 of its tests failed")]


def test_the_shards_of_a_session_count_as_one(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        for number in (1, 2, 3, 4):
            name = f"{4 * day + number:04}_run.json"
            store(
                tmp_path,
                name,
                day=day,
                run_stamp=stamp(shard=shard(number)),
                commit=f"{number}" * 40,
            )

    choice = choose_runs(tmp_path, True, HERE, max_sessions=2)

    assert used(choice) == [f"{number:04}_run.json" for number in range(9, 17)]


def test_a_run_whose_benchmarks_are_cut_off_is_refused_when_it_is_read(tmp_path: Path) -> None:
    store(tmp_path, "0001_run.json")
    cut_off(store(tmp_path, "0002_cut.json", day=2))

    choice = choose_runs(tmp_path, True, HERE, max_sessions=1)

    assert used(choice) == ["0001_run.json"]
    ((name, reason),) = refusals(choice)
    assert name == "0002_cut.json"
    assert reason.startswith("is not JSON, or was cut off: ")


def test_a_second_stamp_behind_the_benchmarks_is_the_one_that_counts(tmp_path: Path) -> None:
    path = store(tmp_path)
    failed = json.dumps(msgspec.to_builtins(stamp(num_failed=1)))
    path.write_text(f'{path.read_text().rstrip().removesuffix("}")}, "perfsuite": {failed}}}')

    assert refusals(choose_runs(tmp_path, True, HERE)) == [
        ("0001_run.json", "1 of its tests failed")
    ]


def test_a_bad_file_does_not_hide_the_good_ones(tmp_path: Path) -> None:
    store(tmp_path, "0001_run.json")
    store(tmp_path, "0002_cut.json").write_text("")

    choice = choose_runs(tmp_path, True, HERE)

    assert used(choice) == ["0001_run.json"]
    assert refusals(choice) == [("0002_cut.json", "is empty")]


def test_a_link_that_leads_to_itself_does_not_hide_the_good_ones(tmp_path: Path) -> None:
    link = store(tmp_path, "0001_run.json").with_name("0002_loop.json")
    link.symlink_to(link)

    choice = choose_runs(tmp_path, True, HERE)

    assert used(choice) == ["0001_run.json"]
    assert refusals(choice) == [("0002_loop.json", "Too many levels of symbolic links")]
    assert not is_brought(link, frozenset({tmp_path / "a.json"}))


def test_a_link_out_of_the_storage_is_not_followed(tmp_path: Path) -> None:
    outside = store(tmp_path / "elsewhere")
    link = tmp_path / "storage" / get_machine_id() / "0001_link.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)

    choice = choose_runs(tmp_path / "storage", True, HERE)

    assert refusals(choice) == [("0001_link.json", "is a link that leads out of the storage")]


def test_a_storage_that_is_itself_a_link_is_used(tmp_path: Path) -> None:
    store(tmp_path / "elsewhere")
    (tmp_path / "storage").symlink_to(tmp_path / "elsewhere")

    assert used(choose_runs(tmp_path / "storage", True, HERE)) == ["0001_run.json"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("0002", ["0002_b.json"]),
        ("0002_", ["0002_b.json"]),
        ("0*", ["0001_a.json", "0002_b.json"]),
        ("*/0001", ["0001_a.json"]),
        (f"{get_machine_id()}/*_b", ["0002_b.json"]),
        ("", ["0001_a.json", "0002_b.json"]),
    ],
)
def test_a_number_or_a_glob_chooses_as_pytest_benchmark_does(
    tmp_path: Path, selector: str, expected: list[str]
) -> None:
    store(tmp_path, "0001_a.json", day=1)
    store(tmp_path, "0002_b.json", day=2)

    assert used(choose_runs(tmp_path, selector, HERE)) == expected


def test_a_path_chooses_a_file_outside_of_storage_and_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store(tmp_path / "elsewhere")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    choice = choose_runs(tmp_path / "storage", str(path), HERE)

    assert [run.path for run in choice.usable] == [path]


def test_a_chosen_run_that_is_unusable_is_refused_like_any_other(tmp_path: Path) -> None:
    path = store(tmp_path, run_stamp=stamp(num_failed=2))

    for selector in ("0001", str(path)):
        choice = choose_runs(tmp_path, selector, HERE)
        assert refusals(choice) == [("0001_run.json", "2 of its tests failed")]


@pytest.mark.parametrize("selector", ["a/b/c", "/nowhere/0001", "../0001", "a**b"])
def test_a_selector_that_is_none_says_what_one_looks_like(tmp_path: Path, selector: str) -> None:
    with pytest.raises(SettingError) as refused:
        choose_runs(tmp_path, selector, HERE)

    assert str(refused.value) == (
        f"--benchmark-compare is {selector!r} (command line), and there is no such file; use a "
        "number such as 0001, a glob such as 'Linux*/0001', or the path of a stored run"
    )


def test_where_nothing_is_stored_the_storage_is_named(tmp_path: Path) -> None:
    assert [str(run) for run in choose_runs(tmp_path, True, HERE).refused] == [
        f"{tmp_path}: holds no stored run"
    ]
    assert [str(run) for run in choose_runs(tmp_path, "0007", HERE).refused] == [
        f"{tmp_path}: holds no stored run that matches '0007'"
    ]
    missing = tmp_path / "missing"
    assert [str(run) for run in choose_runs(missing, True, HERE).refused] == [
        f"{missing}: does not exist, so no run is stored in it"
    ]
    file = tmp_path / "file"
    file.touch()
    assert [str(run) for run in choose_runs(file, True, HERE).refused] == [
        f"{file}: is no folder, so no run is stored in it"
    ]


def test_a_run_is_saved_under_the_next_number(tmp_path: Path) -> None:
    (tmp_path / "0007_old.json").write_text("old")

    path = save_run(tmp_path, "new", b"data")

    assert path == tmp_path / "0008_new.json"
    assert path.read_bytes() == b"data"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0007_old.json", "0008_new.json"]


def test_runs_that_are_saved_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def save(number: int) -> None:
        start.wait()
        save_run(tmp_path, "run", b"%d" % number)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    names = [f"{number:04}_run.json" for number in range(1, 9)]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert {(tmp_path / name).read_bytes() for name in names} == {b"%d" % n for n in range(8)}


def test_a_run_that_cannot_be_saved_leaves_nothing_behind(tmp_path: Path) -> None:
    name = "n" * 300

    with pytest.raises(WriteError) as refused:
        save_run(tmp_path, name, b"data")

    assert str(refused.value) == f"cannot save {tmp_path}/NNNN_{name}.json: File name too long"
    assert list(tmp_path.iterdir()) == []
