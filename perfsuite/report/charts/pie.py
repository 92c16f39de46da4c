"""The stages of a profile as a pie chart, in every format that a page or a paper takes."""

import io
from typing import Any, Literal

from perfsuite.records.profile import Profile
from perfsuite.units import format_ratio, format_seconds

Format = Literal["svg", "pdf", "png"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png")

# Told apart with any colour vision (Okabe and Ito, "Color Universal Design", 2008).
_COLORS = {
    "load": "#E69F00",
    "forward": "#56B4E9",
    "loss + backward": "#0072B2",
    "evaluation": "#009E73",
    "other": "#BBBBBB",
}
# Of its own, so that a user's style does not change it; text stays text that can be searched.
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "perfsuite", "pdf.fonttype": 42}


def draw_pie(profile: Profile, file_format: Format) -> bytes:
    """Return the chart as a file; the same profile gives the same bytes."""
    # Imported here, as no other report needs it; pyplot would keep figures and look for a screen.
    import matplotlib.style
    from matplotlib.figure import Figure

    rows = profile.stages_s.as_rows()
    output = io.BytesIO()
    with matplotlib.style.context(_STYLE, after_reset=True):
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.add_subplot()
        wedges, *_ = axes.pie(
            [seconds for _, seconds in rows],
            colors=[_COLORS[name] for name, _ in rows],
            startangle=90,
            counterclock=False,
            wedgeprops={"edgecolor": "white", "linewidth": 1},
        )
        labels = [
            f"{name}: {format_seconds(seconds)}, {format_ratio(seconds / profile.wall_s)}"
            for name, seconds in rows
        ]
        axes.legend(wedges, labels, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        # Dollars in a name do not make it a formula.
        total = format_seconds(profile.wall_s)
        axes.set_title(f"{profile.workload}: {total}", parse_math=False)
        description = "Subject" if file_format == "pdf" else "Description"
        metadata: dict[str, str | None] = {
            "Title": f"Stages of {profile.workload}",
            description: f"Pie chart of {total} of training: {'; '.join(labels)}.",
            # A date would make every file another one.
            **{"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format, {}),
        }
        figure.savefig(output, format=file_format, dpi=200, metadata=metadata, bbox_inches="tight")
    return output.getvalue()
