"""What the doctor says of one subject."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report, and of its JSON.

    With a "warn" timings suffer, with a "fail" cells cannot run. The text is the value that was
    found, and what is wrong with it; the advice says what to do, where there is something to do.
    """

    subject: str
    status: Status
    text: str
    advice: str | None = None
