"""What people, and those who mean harm, write where something else is expected: tables alone.

Each table says what is allowed instead, as far as the message quotes it.
"""

from __future__ import annotations

import math
from typing import Any, Final

LONG: Final = "9" * 400

# Option without "--perf-": what it is given, and what its message allows.
OPTIONS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "device": (("tpu", "", "CPU", "cuda:0", "-h"), "one of auto, cpu, cuda"),
    "require-gpus": (("-1", "two", "1.5", ""), "a whole number from 0"),
    "rounds": (("0", "-3", "ten", "1e3", "nan", "", "9" * 5000), "a whole number from 1"),
    "matrix": (("big", "", "Smoke", "\x1b[2J"), "one of smoke, default, full"),
    "numerics": (("yes", "ON", ""), "on or off"),
    "numerics-change": (("refuse", "FAIL", ""), "tell or fail"),
    "policy": (("advise", "ENFORCE", ""), "enforce or advisory"),
    "gate": (("maybe", "true", ""), "on or off"),
    "tolerance": (("fast", "-2%", "2%%", "nan", "inf", "1e-2", LONG), "a ratio such as 2%"),
    "limit": (("wide", "-5%", "0x5", "5 %%", "", LONG), "a ratio such as 5%"),
    "max-pairs": (("2", "0", "-16", "many", "4.0"), "a whole number from 3"),
    "max-minutes": (
        ("soon", "-1min", "1h", "nan", "", LONG),
        "minutes such as 30, or a duration such as 90s",
    ),
    "seed": (
        ("lucky", "-1", "4294967296", "1.0", "", "0x1"),
        "a whole number from 0 to 4294967295",
    ),
    "timeout": (
        ("soon", "0", "-1", "inf", "", LONG),
        "a duration above 0, such as 120 or 2min",
    ),
    "collective-timeout": (
        ("later", "0ms", "-5s", "5 days", LONG),
        "a duration above 0, such as 30 or 500ms",
    ),
    "wait": (("forever", "-1", "1day", "", LONG), "a duration from 0"),
    "shard": (
        ("0/4", "5/4", "a/b", "4", "-1/4", "1/4/2", "", f"1/{LONG}"),
        "I/N for the I-th of N shards, such as 2/4; N may be 99999 at most",
    ),
}

# Arguments of a perf marker, and what its message allows.
MARKERS: Final[tuple[tuple[tuple[Any, ...], dict[str, Any], str], ...]] = (
    (("2%",), {}, "use tolerance=, limit=, floor=, counts=, matrix="),
    ((), {"speed": "2%"}, "use tolerance, limit, floor, counts, matrix"),
    ((), {"tolerance": "fast"}, "use a ratio such as '2%'"),
    ((), {"tolerance": 0.02}, "use a ratio such as '2%'"),
    ((), {"tolerance": None}, "use a ratio such as '2%'"),
    ((), {"tolerance": LONG}, "use a ratio such as '2%'"),
    ((), {"limit": "-5%"}, "use a ratio such as '5%'"),
    ((), {"limit": ["5%"]}, "use a ratio such as '5%'"),
    ((), {"floor": "50 parsecs"}, "use a duration such as '50us'"),
    ((), {"floor": -1}, "use a duration such as '50us'"),
    ((), {"counts": "exact"}, "use a dict such as {'flops': 'exact'}"),
    ((), {"counts": 1}, "use a dict such as {'flops': 'exact'}"),
    ((), {"matrix": "huge"}, "use one of smoke, default, full"),
    ((), {"matrix": None}, "use one of smoke, default, full"),
)

RECIPES: Final[tuple[dict[str, Any], ...]] = (
    *({"parallel": mode} for mode in (
        "", "single:1", "ddp", "ddp:", "ddp:0", "ddp:-2", "ddp:2.0", "ddp:02", "ddp: 2", "DDP:2",
        "ddp:2:gpipe", "dp:1", "tp:1", "pp:1", "mp:1", "pp:2:fast", "pp:2:", "hsdp:2", "hsdp:0x2",
        "hsdp:2x", "hsdp:2x2x2", "horovod", "ddp:2,fsdp:2", "mesh", "mesh:", "mesh:2x2",
        "mesh:dp=2,", "mesh:dp=0", "mesh:dp=2,dp=2", "mesh:rows=2", "mesh:DP=2", "mesh:dp=2 tp=2",
        f"mesh:dp={LONG}", "ddp:٢", f"ddp:{LONG}", "\x1b[2J",
        "--help", "../ddp:2", None, 2, ["ddp:2"],
    )),
    *({"precision": name} for name in ("fp8", "", "FP32", None, 16, ["fp32"])),
    *({"checkpointing": name} for name in (
        "some", "segments", "segments:0", "segments:-1", f"segments:{LONG}", "", None, True,
    )),
    *({"loader": name} for name in ("", "free", None, True, ["own"])),
    *({"num_workers": count} for count in (-1, 1.0, "2", True, None, math.nan)),
    *({"micro_batch_size": size} for size in (0, -1, 1.5, "32", True)),
    *({"grad_accumulation_steps": count} for count in (0, None, "1", 2.0)),
    *({"clip_grad_norm": norm} for norm in (0, -1.0, math.nan, math.inf, "1", True)),
    *({"bucket_cap_mb": size, "parallel": "ddp:2"} for size in (0, -25, math.inf, "25")),
    *({"prefetch_factor": count, "num_workers": 1} for count in (0, -1, 1.5, "2")),
    *({name: 1} for name in ("pin_memory", "non_blocking", "compile", "static_graph")),
    {"prefetch_factor": 2},
    {"persistent_workers": True},
    {"static_graph": True},
    {"comm_hook": "zip", "parallel": "ddp:2"},
    {"comm_hook": "fp16", "parallel": "fsdp:2"},
    {"parallel": "pp:2", "compile": True},
    {"parallel": "tp:2", "precision": "fp8-tensorwise"},
    {"precision": "fp8-blockwise"},
)  # fmt: skip

WORKLOADS: Final[tuple[dict[str, Any], ...]] = (
    {"name": ""},
    {"name": None},
    {"name": 3},
    {"build_model": "model"},
    {"build_model": None},
    {"build_dataset": []},
    {"loss": "mse"},
    {"build_optimizer": 0.1},
    {"blocks": ["layers"]},
    {"micro_batch_size": 0},
    {"micro_batch_size": "32"},
    {"micro_batch_size": None},
    {"metric": "f1"},
    {"metric": None},
    {"parallelize": "fsdp"},
    {"parallelize": False},
    {"build_loader": ["a", "batch"]},
    {"build_loader": "loader"},
)

# An argument of step_benchmark or loop_benchmark that is a function, and fields of `UserCode`.
USER_CODE: Final[tuple[tuple[str, Any, dict[str, Any]], ...]] = (
    *(("build_step", function, {}) for function in (
        None, 3, "train.py", ["step"], {}, lambda rank: rank, lambda *, rate: rate, dict.get,
    )),
    *(("reference", function, {}) for function in (True, "single", (), lambda config: config)),
    *(("train", function, {"kind": "loop", "num_steps": 9}) for function in (b"", 1.5, [])),
    *(("build_step", dict, {"world_size": ranks}) for ranks in (0, -1, 2.0, "2", None, True)),
    *(("build_step", dict, {"samples_per_step": count}) for count in (0, -8, 1.5, "8", True)),
    *(("build_step", dict, {"tokens_per_step": count}) for count in (0, -1, math.nan, "32", [])),
    *(("build_step", dict, {"precision": name}) for name in (
        "fp8", "FP32", "", "tf32", "O1", None, 16, ["fp32"], "\x1b[2J",
    )),
    *(("train", dict, {"kind": "loop", "num_steps": count}) for count in (
        None, 0, 1, -4, 2.5, "40", True,
    )),
    *(("train", dict, {"kind": "loop", "num_steps": 9, "num_warmup": count}) for count in (
        None, 1, 0, -1, "10", 2.0,
    )),
    *(("train", dict, {"kind": "loop", "num_steps": 9, "optimizer": name}) for name in (
        int, 3, ["SGD"], b"SGD",
    )),
)  # fmt: skip

REFERENCES: Final[tuple[Any, ...]] = (
    "nothing", "", " ", ":", "a:", ":b", "a b:c", "os.path", "../evil:workload", "-m:x", "a:b;c",
    "__import__('os'):system", "\x1b[2J", "a:b:c", None, 3, ["toy-mlp"],
)  # fmt: skip

# A verb and its arguments, and what stands in its one line.
VERBS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("verify", "nothing"), "workload 'nothing' is not known"),
    (("verify", "../evil:workload"), "is not known"),
    (("verify", "\x1b[2J"), "is not known"),
    (("verify", "toy-mlp", "--parallel", "ddp:0"), "parallel 'ddp:0' has a size of 0"),
    (("verify", "toy-mlp", "--parallel", "warp:9"), "is not a known mode"),
    (("verify", "toy-mlp", "--parallel", "mesh:rows=2"), "axis 'rows' share a batch"),
    (("verify", "toy-mlp", "--precision", "fp8"), "precision is 'fp8'"),
    (("verify", "toy-mlp", "--checkpointing", "some"), "checkpointing is 'some'"),
    (("verify", "toy-mlp", "--device", "tpu"), "--device is 'tpu'"),
    (("verify", "toy-mlp", "--all", "--precision", "bf16"), "leave the options of one recipe out"),
    (("verify", "toy-mlp", "--loader", "cached"), "is for perfsuite compare and perfsuite sweep"),
    (("profile", "toy-mlp", "--loader", "cached"), "is for perfsuite compare and perfsuite sweep"),
    (("profile", "toy-mlp", "--loader", "free"), "loader is 'free'; use one of own, cached"),
    (("profile", "toy-mlp", "--precision", "fp8"), "precision is 'fp8'"),
    (("profile", "toy-mlp", "--device", "none"), "--device is 'none'"),
    (("sweep", "toy-mlp", "--num-workers", "many"), "--num-workers is 'many'"),
    (("sweep", "toy-mlp", "--num-workers", "5..1"), "--num-workers is '5..1'"),
    (("sweep", "toy-mlp", "--num-workers", "0..999"), "of at most 256 workers"),
    (("sweep", "toy-mlp", "--num-workers", "0,,1"), "--num-workers is '0,,1'"),
    (("compare", "toy-mlp", "--a", "precision"), "--a is 'precision'; use FIELD=VALUE"),
    (("compare", "toy-mlp", "--a", "speed=2"), "which is no field of a recipe"),
    (("compare", "toy-mlp", "--b", "num_workers=x"), "--b gives num_workers as 'x'"),
    (("compare", "toy-mlp", "--b", "compile=perhaps"), "use True or False"),
    (("compare", "toy-mlp"), "a and b are the same recipe"),
    (("compare", "toy-mlp", "--tolerance", "fast"), "--tolerance is 'fast'"),
    (("compare", "toy-mlp", "--tolerance", "200%", "--limit", "300%"), "use less than 100"),
    (("compare", "toy-mlp", "--limit=1%", "--tolerance=2%"), "above the limit"),
    (("compare", "toy-mlp", "--limit", LONG), "--limit is "),
    (("claims", "--only", "C99"), "--only names 'C99'"),
    (("claims", "--only", "--help"), "--only names '--HELP'"),
    (("gate", "--tolerance", "fast"), "--tolerance is 'fast'"),
    (("gate", "--limit=1%", "--tolerance=2%"), "above the limit"),
    (("gate", "--limit", LONG), "--limit is "),
    (("gate", "--base", "HEAD", "--base-dir", "."), "name two bases"),
    (("gate", "--base-python", "no-such-python"), "which is not a program"),
    (("gate", "--base-env", "KEY"), "use KEY=VALUE"),
    (("gate", "--base-env", "=value"), "use KEY=VALUE"),
    (("gate", "--steps", "9"), "--steps is for a command"),
    (("gate", "--metrics", "jsonl:a:b"), "--metrics is for a command"),
    (("gate", "--"), "no command stands after --"),
    (("gate", "--", "no-such-program"), "the command begins with 'no-such-program'"),
    (("gate", "benchmarks", "--", "python"), "benchmarks stands before -- and a command"),
    (("gate", "-k", "a", "--", "python"), "-k stands before -- and a command"),
    (("gate", "--steps", "1", "--", "python3"), "steps is 1; use a whole number from 2"),
    (("gate", "--name", " ", "--", "python3"), "name is ' '; use a text"),
    (("gate", "--metrics", "csv:a", "--", "python3"), "metrics is 'csv:a'; use jsonl:FILE:KEY"),
    (("calibrate", "--planted", "slow"), "--planted is 'slow'; use a slowdown such as 5%"),
    (("calibrate", "--planted", "speed=2"), "which is no field of a recipe"),
    (("calibrate", "--tolerance", "x"), "--tolerance is 'x'"),
    (("report", "missing.json"), "missing.json: No such file or directory"),
    (("report", "."), "is not a regular file"),
    (("report", "empty.json"), "empty.json: is empty"),
    (("report", "torn.json"), "is not JSON, or was cut off"),
    (("report", "latin1.json"), "is not UTF-8"),
    (("report", "list.json"), "is no run of pytest-benchmark"),
    (("report", "object.json"), "is no run of pytest-benchmark"),
    (("report", "deep.json"), "deep.json: is nested too deeply"),
    (("report", "list.json", "--tolerance", "x"), "--tolerance is 'x'"),
    (("report", "list.json", "--limit=0.1%", "--tolerance=2%"), "above the limit"),
    (("explain", "missing.json", "missing.json"), "missing.json: No such file or directory"),
    (("explain", "torn.json", "torn.json"), "is not JSON, or was cut off"),
    (("init", "missing"), "missing is not a folder"),
    (("baseline", "prune", "--yes"), "say with --keep N"),
    (("baseline", "prune", "--file", "torn.toml"), "torn.toml is not TOML"),
    (("baseline", "prune", "--file", "huge.toml"), "huge.toml is not TOML"),
    (("baseline", "prune", "--file", "hostile.toml"), "unknown field"),
    (("baseline", "prune", "--file", "."), "cannot be read: is not a regular file"),
)
EXCEPTION: Final = ("baseline", "accept", "a", "--reason", "r", "--expires", "2999-01-01")
VERBS_OF_EXCEPTIONS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (EXCEPTION, "0 of --slowdown, --removed, --quarantined, --renamed-to"),
    ((*EXCEPTION, "--removed", "--slowdown", "2"), "2 of --slowdown"),
    ((*EXCEPTION, "--slowdown", "1.0"), "ratio is 1.0; use a number above 1"),
    ((*EXCEPTION, "--slowdown", "nan"), "ratio is nan; use a number above 1"),
    ((*EXCEPTION, "--slowdown", "inf"), "ratio is inf; use a number above 1"),
    ((*EXCEPTION, "--renamed-to", "a"), "use another name than the cell's"),
    ((*EXCEPTION, "--renamed-to", ""), "use another name than the cell's"),
    ((*EXCEPTION, "--increase", "speed"), "count is 'speed'; use one of"),
    ((*EXCEPTION, "--increase", "flops=much"), "--increase flops is 'much'"),
    ((*EXCEPTION[:-1], "2001-01-01", "--removed"), "which is past"),
    (("baseline", "accept", "", *EXCEPTION[3:], "--removed"), "cell is empty"),
    (("baseline", "accept", "a", "--reason", " ", *EXCEPTION[5:], "--removed"), "reason is empty"),
)

# What the command line's own parser refuses: the option that it names.
USAGE: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("mesure",), "mesure"),
    (("verify",), "{workload}"),
    (("verify", "toy-mlp", "--steps", "0"), "--steps"),
    (("verify", "toy-mlp", "--steps", "11"), "--steps"),
    (("verify", "toy-mlp", "--num-workers", "two"), "--num-workers"),
    (("verify", "toy-mlp", "--seed", "-1"), "--seed"),
    (("verify", "toy-mlp", "--no-such-option"), "--no-such-option"),
    (("profile", "toy-mlp", "--epochs", "0"), "--epochs"),
    (("sweep", "toy-mlp", "--repetitions", "1"), "--repetitions"),
    (("compare", "toy-mlp", "--max-pairs", "2"), "--max-pairs"),
    (("compare", "toy-mlp", "--max-minutes", "-1"), "--max-minutes"),
    (("gate", "--max-pairs", "0"), "--max-pairs"),
    (("gate", "--seed", "-1"), "--seed"),
    (("calibrate", "--sessions", "-1"), "--sessions"),
    (("baseline", "prune", "--keep", "0"), "--keep"),
    (("baseline", "accept", "a", "--reason", "r", "--expires", "soon"), "--expires"),
    (("baseline", "accept", "a", "--expires", "2999-01-01"), "--reason"),
    (("report",), "RUN.json"),
)
FILES: Final[dict[str, bytes]] = {
    "empty.json": b"",
    "torn.json": b'{"benchmarks": [',
    "latin1.json": b'{"a": "\xff"}',
    "list.json": b"[]",
    "object.json": b"{}",
    "deep.json": b"[" * 100_000,
    "torn.toml": b"[[accepted",
    "huge.toml": b"a = " + b"9" * 5_000,
    "hostile.toml": b'[[accepted]]\nkind = "removed"\n"\\u001b[2J" = 1\n',
}

# Tests in a file of benchmarks: the body, and how its failure begins.
CELLS: Final[tuple[tuple[str, str], ...]] = (
    ('train_benchmark("nothing", Recipe())', "WorkloadError: workload 'nothing' is not known"),
    ("train_benchmark(None, Recipe())", "WorkloadError: workload is None"),
    ('train_benchmark("a b:c", Recipe())', "WorkloadError: workload 'a b:c' is not known"),
    ('train_benchmark("toy-mlp", None)', "RecipeError: recipe is None"),
    ('train_benchmark("toy-mlp", {"parallel": "ddp:2"})', "RecipeError: recipe is {"),
    ('train_benchmark("toy-mlp", Recipe(parallel="ddp:0"))', "RecipeError: parallel 'ddp:0'"),
    ('train_benchmark("toy-mlp", Recipe(precision="fp8"))', "RecipeError: precision is 'fp8'"),
    (
        'train_benchmark("toy-mlp", Recipe(loader="cached"))',
        "RecipeError: loader='cached' trains on a few batches over and over, and is for perfsuite "
        "compare and perfsuite sweep alone; use loader='own'",
    ),
    ('train_benchmark("toy-mlp", Recipe(), rounds=0)', "RecipeError: rounds is 0"),
    ('train_benchmark("toy-mlp", Recipe(), rounds="ten")', "RecipeError: rounds is 'ten'"),
    ('train_benchmark("toy-mlp", Recipe(), iterations=-1)', "RecipeError: iterations is -1"),
)

# Arguments of command_benchmark, and how their SettingError begins.
COMMANDS: Final[tuple[tuple[str, str], ...]] = (
    ('"python train.py", steps=9', "command is 'python train.py'; use a list of words"),
    ("[], steps=9", "command is []; use a list of words"),
    ("None, steps=9", "command is None; use a list of words"),
    ('["python", 3], steps=9', "command is ['python', 3]; use a list of words"),
    ('["python", ""], steps=9', "command is ['python', '']; use a list of words"),
    ('["\\x1b[2J"], steps=9', "the command begins with '\\x1b[2J', which is no program"),
    ('["../train.py"], steps=9', "the command begins with '../train.py', which is no program"),
    ('["sh"], steps=1', "steps is 1; use a whole number from 2"),
    ('["sh"], steps=None', "steps is None; use a whole number from 2"),
    ('["sh"], steps="40"', "steps is '40'; use a whole number from 2"),
    ('["sh"], steps=9, warmup=0', "warmup is 0; use a whole number from 2"),
    ('["sh"], steps=9, warmup=2.5', "warmup is 2.5; use a whole number from 2"),
    ('["sh"], steps=9, cwd="nowhere"', "cwd is 'nowhere'; use a folder, which counts from"),
    ('["sh"], steps=9, cwd=3', "cwd is 3; use a folder, which counts from"),
    ('["sh"], steps=9, env={"SEED": 0}', "env is {'SEED': 0}; use a dict of strings"),
    ('["sh"], steps=9, env=["SEED"]', "env is ['SEED']; use a dict of strings"),
    ('["sh"], steps=9, name=""', "name is ''; use a text, or None"),
    ('["sh"], steps=9, name=3', "name is 3; use a text, or None"),
    ('["sh"], steps=9, optimizer=3', "optimizer is 3; use the name of its class"),
    ('["sh"], steps=9, samples_per_step=0', "samples_per_step is 0; use None or a whole number"),
    ('["sh"], steps=9, tokens_per_step=-1', "tokens_per_step is -1; use None or a whole number"),
    *((f'["sh"], steps=9, metrics={text!r}', f"metrics is {text!r}; use jsonl:") for text in (
        "", "jsonl", "jsonl:", "jsonl:a", "jsonl::a", "csv:a:b", "tensorboard:runs", "regex:",
        "regex:time", "regex:(a)(b)", "regex:(", "jsonl:a:b*0", 3,
    )),
)  # fmt: skip
