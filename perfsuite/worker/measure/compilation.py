"""What torch.compile has done in this process so far."""

import sys
from typing import NamedTuple


class Compilation(NamedTuple):
    """Breaks of graphs, frames that were compiled once more, and the seconds of all of it."""

    graph_breaks: int
    recompiles: int
    compile_s: float


def read_compilation() -> Compilation | None:
    """Return what torch.compile has done, backward passes included; None where it did nothing."""
    # Only what compiles has loaded it, which takes a second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None or not dynamo.counters["frames"]:
        return None
    times_compiled = sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER.values()
    return Compilation(
        graph_breaks=sum(dynamo.counters["graph_break"].values()),
        recompiles=sum(times - 1 for times in times_compiled),
        compile_s=dynamo.calculate_time_spent()["total_wall_time"],
    )
