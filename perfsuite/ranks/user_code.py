"""A user's own code as it travels to ranks, and the jobs that check it; see `ranks.messages`."""

from dataclasses import dataclass
from typing import Literal

from perfsuite.errors import SettingError
from perfsuite.records.recipe import is_int_from, optional

# Those that one process can be held to whatever computes them; `Recipe` has more.
OWN_PRECISIONS = ("fp64", "fp32", "bf16", "amp-bf16", "amp-fp16")


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """A function or a command of a user's that trains, measured as it is.

    Attributes:
        function: Packed: `build_step`, which returns the step, or `train`, which is a whole loop;
            empty for a command.
        world_size: Of the ranks that call it; a command itself says how many it starts.
        samples_per_step: Of all ranks together; None where the user does not say.
        num_steps: Steps of a loop or a command that are timed, after `num_warmup`.
        optimizer: Name of the class whose steps count; None is the first optimizer that steps.
    """

    name: str
    function: bytes
    kind: Literal["step", "loop", "command"]
    world_size: int = 1
    samples_per_step: int | None = None
    tokens_per_step: int | None = None
    num_steps: int | None = None
    num_warmup: int = 3
    optimizer: str | None = None
    precision: str = "fp32"

    def __post_init__(self) -> None:
        amount = optional(is_int_from(1)), "None or a whole number from 1"
        is_text = optional(lambda value: isinstance(value, str))
        is_known = OWN_PRECISIONS.__contains__
        # Two rounds of a step; the time from one step's end to the next one's chooses rounds.
        at_least_2 = optional(is_int_from(2)) if self.kind == "step" else is_int_from(2)
        for name, value, is_allowed, allowed in (
            ("ranks", self.world_size, is_int_from(1), "a whole number from 1"),
            ("samples_per_step", self.samples_per_step, *amount),
            ("tokens_per_step", self.tokens_per_step, *amount),
            ("optimizer", self.optimizer, is_text, "the name of its class, such as 'AdamW'"),
            ("precision", self.precision, is_known, f"one of {', '.join(OWN_PRECISIONS)}"),
            ("steps", self.num_steps, at_least_2, "a whole number from 2"),
            ("warmup", self.num_warmup, is_int_from(2), "a whole number from 2"),
        ):
            if not is_allowed(value):
                raise SettingError(f"{name} is {value!r}; use {allowed}")


@dataclass(frozen=True, kw_only=True)
class RecordSteps:
    """Job: take the first steps of a user's own, and write what each rank saw to a file."""

    user_code: UserCode
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class CheckSteps:
    """Job: compare the steps of `tested` with those of `reference`, which one rank takes here."""

    reference: UserCode
    tested: UserCode
