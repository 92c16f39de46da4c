"""A profile in the terminal, in LaTeX and as CSV: the same figures, and names are data."""

from __future__ import annotations

import csv
import re

import msgspec
import pytest
from profile_example import PROFILE, UNEVALUATED

from perfsuite.records.profile import Profile
from perfsuite.report.formats.csv_file import profile_csv
from perfsuite.report.formats.latex import escape, profile_latex
from perfsuite.report.terminal.profile import profile_lines


def profile_text(profile: Profile) -> str:
    return "\n".join(profile_lines(profile))


def test_the_terminal_shows_stages_epochs_accuracy_and_operators() -> None:
    assert profile_text(PROFILE).splitlines() == [
        "lenet (ddp:2, fp32, 2 loader workers): 10.0 s on cpu",
        " stage               time    share",
        " ─────────────────────────────────",
        " load              4.00 s   40.0 %",
        " forward           1.00 s   10.0 %",
        " loss + backward   2.00 s   20.0 %",
        " evaluation        2.50 s   25.0 %",
        " other             500 ms    5.0 %",
        " epoch     loss     time   accuracy",
        " ──────────────────────────────────",
        "     1   0.2500   10.0 s     75.0 %",
        "accuracy on the validation split: 75.0 %",
        "by class: 0: 50.0 %, 1: 100.0 %",
        " operator   calls a step   own time a step",
        " ─────────────────────────────────────────",
        " aten::mm              2           1.00 ms",
        "communication: 100 ms a step, 33.3 % of it exposed (nothing computed meanwhile)",
        "rank 0 on cpu: 75.0 % busy, at most 2.00 MiB in use",
    ]


def test_what_is_not_there_is_said_once_with_its_reason() -> None:
    assert profile_text(UNEVALUATED).splitlines()[-3:] == [
        "     1      -   10.0 s          -",
        "NaN or infinity: the first loss that is not finite is of epoch 1, step 7",
        "accuracy: not available: there is no split",
    ]


def test_a_workloads_own_metric_is_shown_instead_of_accuracy() -> None:
    measured = msgspec.structs.replace(
        UNEVALUATED, evaluated_split="test", metrics={"f1": 0.8125, "perplexity": None}
    )

    assert "on the test split: f1 0.8125, perplexity -" in profile_text(measured).splitlines()


def test_of_many_classes_the_first_twenty_are_shown() -> None:
    many = msgspec.structs.replace(
        PROFILE, accuracy_per_class={str(number): 1.0 for number in range(25)}
    )

    (line,) = [text for text in profile_text(many).splitlines() if text.startswith("by class")]

    assert line.endswith("19: 100.0 % and 5 more")


def test_the_figures_of_the_latex_table_are_those_of_the_json() -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(PROFILE), type=Profile)

    rows = re.findall(r"^(\S[^&\n]*?) & ([\d.]+) & ([\d.]+) \\\\$", profile_latex(PROFILE), re.M)

    assert [(name, float(seconds)) for name, seconds, _ in rows] == [
        *decoded.stages_s.as_rows(),
        ("total", decoded.wall_s),
    ]
    assert [share for _, _, share in rows] == ["40.0", "10.0", "20.0", "25.0", "5.0", "100.0"]


def test_a_hostile_name_is_data_in_latex() -> None:
    hostile = msgspec.structs.replace(PROFILE, workload="a_b:\\input{/etc/passwd}%&$#^~")

    caption = profile_latex(hostile).split(r"\caption{")[1]

    assert caption.startswith(
        r"Where the time of a\_b:\textbackslash{}input\{/etc/passwd\}\%\&\$\#"
        r"\textasciicircum{}\textasciitilde{} (ddp:2{,} fp32{,} 2 loader workers) went: "
        "1 epoch on cpu"
    )


@pytest.mark.parametrize(
    ("text", "printed"),
    [("a\nb", "a b"), ("<|>", r"\textless{}\textbar{}\textgreater{}"), ("é", "é")],
)
def test_every_character_with_a_meaning_is_escaped(text: str, printed: str) -> None:
    assert escape(text) == printed


def test_the_csv_has_each_stage_and_the_total() -> None:
    rows = list(csv.DictReader(profile_csv(UNEVALUATED).splitlines()))

    assert [(row["stage"], float(row["seconds"]), float(row["share"])) for row in rows] == [
        ("load", 4.0, 0.4),
        ("forward", 1.0, 0.1),
        ("loss + backward", 2.0, 0.2),
        ("other", 3.0, 0.3),
        ("total", 10.0, 1.0),
    ]


def test_the_json_is_what_it_was() -> None:
    assert msgspec.json.decode(msgspec.json.encode(PROFILE), type=Profile) == PROFILE
