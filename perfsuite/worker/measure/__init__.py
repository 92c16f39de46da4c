"""Measuring a callable: rounds, stages, memory, counts, environment.

Must not know of training: it times a callable that is handed a `stage("forward")` context manager.
"""
