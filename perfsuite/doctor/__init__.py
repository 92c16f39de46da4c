"""Whether this machine is fit for timing."""

from perfsuite.doctor.examination import examine
from perfsuite.doctor.findings import Finding, Status

__all__ = ["Finding", "Status", "examine"]
