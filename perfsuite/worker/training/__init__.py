"""The training step and its parts: precision, checkpointing, parallel modes, loaders.

It marks the stages of its step with a `stage("forward")` context manager that its caller gives it.
"""
