"""What torch.compile has done in this process so far."""

import sys


def read_compilation() -> tuple[dict[str, int], float] | None:
    """Return its breaks of graphs and recompilations, as in `records.cell.Counts`, and its seconds.

    Backward passes are included; None where it did nothing.
    """
    # Only what compiles has loaded it, which takes a second.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None or not dynamo.counters["frames"]:
        return None
    times_compiled = sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER.values()
    counts = {
        "graph_breaks": sum(dynamo.counters["graph_break"].values()),
        "recompiles": sum(times - 1 for times in times_compiled),
    }
    return counts, dynamo.calculate_time_spent()["total_wall_time"]
