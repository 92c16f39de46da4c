"""Stored runs: which may serve as a baseline, and their verdict on a cell."""
