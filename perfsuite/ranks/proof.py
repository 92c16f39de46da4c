"""A proof: groups of ranks record what they compute, then one rank checks all that was recorded."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

from perfsuite.ranks.bootstrap import make_group_folder, remove_group_folder
from perfsuite.ranks.messages import CheckRun, CheckSteps, GroupRequest, Reply, RunChecked

# Runs a group of ranks, and returns their replies.
Run = Callable[[GroupRequest], list[Reply]]


def prove(recorded: Sequence[GroupRequest], check: CheckRun | CheckSteps, run: Run) -> RunChecked:
    """Return what a check finds in the files of groups that have recorded; raises as `run` does."""
    folder = make_group_folder()
    # The timed run of the same steps will print what they print.
    policy = dataclasses.replace(recorded[0].policy, proof=str(folder), shows_output=False)
    try:
        for request in recorded:
            run(dataclasses.replace(request, policy=policy))
        (reply,) = run(GroupRequest(job=check, world_size=1, policy=policy, needs_group=False))
        return cast(RunChecked, reply)
    finally:
        remove_group_folder(folder)
