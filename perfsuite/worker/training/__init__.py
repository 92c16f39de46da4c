"""The training step and its parts: precision, checkpointing, parallel modes, loaders.

Must not know of measuring: it hands the stages of its step to a `stage("forward")` context manager
that somebody gives it.
"""
