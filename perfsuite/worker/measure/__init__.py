"""Measuring a callable: rounds, stages, memory, counts, operators, environment.

It knows nothing of training: it times a callable, whose work lies inside context managers that it
is given, such as `stage("forward")`.
"""
