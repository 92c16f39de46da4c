"""The training step and its parts: precision, checkpointing, parallel modes, loaders."""
