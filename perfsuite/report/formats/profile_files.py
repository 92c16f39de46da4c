"""report/formats/profile_files.py."""

from __future__ import annotations

import csv
import io

from perfsuite.records.profile import Profile
from perfsuite.report.formats.latex import escape
from perfsuite.report.terminal.profile import profile_title


def profile_latex(profile: Profile) -> str:
    """Return the table of stages as a LaTeX `table` that needs no package."""
    rows = "\n".join(
        rf"{escape(name)} & {seconds:.6f} & {100 * seconds / profile.wall_s:.1f} \\"
        for name, seconds in profile.stages_s.as_rows()
    )
    caption = (
        f"Where the time of {profile_title(profile)} went: {_epochs(profile)} on {profile.device}, "
        f"{profile.world_size} {'rank' if profile.world_size == 1 else 'ranks'}."
    )
    return rf"""\begin{{table}}
\centering
\begin{{tabular}}{{lrr}}
\hline
Stage & Time (s) & Share (\%) \\
\hline
{rows}
\hline
total & {profile.wall_s:.6f} & 100.0 \\
\hline
\end{{tabular}}
\caption{{{escape(caption)}}}
\end{{table}}
"""


def profile_csv(profile: Profile) -> str:
    """Return the stages as CSV with a header, in seconds and as ratios of the wall time."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["stage", "seconds", "share"])
    for name, seconds in profile.stages_s.as_rows():
        writer.writerow([name, f"{seconds:.6f}", f"{seconds / profile.wall_s:.6f}"])
    writer.writerow(["total", f"{profile.wall_s:.6f}", "1.000000"])
    return output.getvalue()


def _epochs(profile: Profile) -> str:
    count = len(profile.epochs)
    return f"{count} {'epoch' if count == 1 else 'epochs'}"
