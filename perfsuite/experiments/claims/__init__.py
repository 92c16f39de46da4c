"""Claims about training speed that people repeat, each with an experiment that tests it here."""

from __future__ import annotations

from perfsuite.experiments.claims.catalogue import CLAIMS
from perfsuite.experiments.claims.claim import Bench, Claim, ClaimFinding, Status

__all__ = ["CLAIMS", "Bench", "Claim", "ClaimFinding", "Status"]
