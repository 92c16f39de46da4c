"""Stored runs: which may serve as a baseline, and what they say of a cell."""
