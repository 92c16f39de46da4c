"""The stages of a profile as a pie chart, in every format that a page or a paper takes.

Sees the profile only. Imports matplotlib inside its function: no other report needs it.
"""

from __future__ import annotations

import io
from typing import Any, Final, Literal

from perfsuite.records.profile import Profile
from perfsuite.units import format_ratio, format_seconds

Format = Literal["svg", "pdf", "png"]
FORMATS: Final[tuple[Format, ...]] = ("svg", "pdf", "png")

# Told apart with any colour vision (Okabe and Ito, "Color Universal Design", 2008).
_COLORS: Final = {
    "load": "#E69F00",
    "forward": "#56B4E9",
    "loss + backward": "#0072B2",
    "evaluation": "#009E73",
    "other": "#BBBBBB",
}
_DOTS_PER_INCH = 200


def describe_pie(profile: Profile) -> str:
    """Return the chart in words, as its alternative text."""
    shares = ", ".join(
        f"{name} {format_seconds(seconds)} ({format_ratio(seconds / profile.wall_s)})"
        for name, seconds in profile.stages_s.as_rows()
    )
    return f"Pie chart of {format_seconds(profile.wall_s)} of training: {shares}."


def draw_pie(profile: Profile, file_format: Format) -> bytes:
    """Return the chart as a file; the same profile gives the same bytes."""
    # Not through pyplot, which keeps figures and looks for a screen.
    import matplotlib
    from matplotlib.figure import Figure

    rows = profile.stages_s.as_rows()
    # Of its own, so that a user's style does not change it; text stays text that can be searched.
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "perfsuite",
        "pdf.fonttype": 42,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.add_subplot()
        pieces = axes.pie(
            [seconds for _, seconds in rows],
            colors=[_COLORS[name] for name, _ in rows],
            startangle=90,
            counterclock=False,
            wedgeprops={"edgecolor": "white", "linewidth": 1},
        )
        axes.legend(
            pieces[0],
            [
                f"{name}: {format_seconds(seconds)}, {format_ratio(seconds / profile.wall_s)}"
                for name, seconds in rows
            ],
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
        )
        # A name with dollars in it is no formula.
        title = f"{profile.workload}: {format_seconds(profile.wall_s)}"
        axes.set_title(title, parse_math=False)
        output = io.BytesIO()
        metadata = _metadata(profile, file_format)
        figure.savefig(
            output,
            format=file_format,
            dpi=_DOTS_PER_INCH,
            metadata=metadata,
            bbox_inches="tight",
        )
    return output.getvalue()


def _metadata(profile: Profile, file_format: Format) -> dict[str, str | None]:
    title = f"Stages of {profile.workload}"
    text = describe_pie(profile)
    if file_format == "pdf":
        return {"Title": title, "Subject": text, "CreationDate": None}
    if file_format == "svg":
        return {"Title": title, "Description": text, "Date": None}
    return {"Title": title, "Description": text}
