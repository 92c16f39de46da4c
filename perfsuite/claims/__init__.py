"""Claims about training speed that people repeat, each with an experiment that tests it here."""

from perfsuite.claims.claim import Bench, Claim, Finding, Status
from perfsuite.claims.registered import CLAIMS

__all__ = ["CLAIMS", "Bench", "Claim", "Finding", "Status"]
