"""Measuring a callable: rounds, stages, memory, counts, operators, environment.

Must not know of training: a callable is timed that works inside `stage("forward")` and the like,
context managers that it is given.
"""
