"""Whether this machine is fit for timing."""

from __future__ import annotations

from perfsuite.cli.doctor.findings import Finding, Status
from perfsuite.cli.doctor.verb import doctor, examine

__all__ = ["Finding", "Status", "doctor", "examine"]
