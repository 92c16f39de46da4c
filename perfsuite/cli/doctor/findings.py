"""What the doctor says of one subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]

# What a finding says where the machine does not show a value, as virtual machines often do not.
NOT_READABLE = "not readable here"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report, and of its JSON.

    Attributes:
        subject: What was looked at.
        status: "ok", "warn" (timings suffer), or "fail" (cells cannot run).
        text: The value that was found, and what is wrong with it.
        advice: What to do; None where there is nothing to do.
    """

    subject: str
    status: Status
    text: str
    advice: str | None = None
