"""Whether this machine is fit for timing."""

from __future__ import annotations

from perfsuite.cli.doctor.examination import examine
from perfsuite.cli.doctor.findings import Finding, Status

__all__ = ["Finding", "Status", "examine"]
