"""The checks, one module each: reduction, semantics, checkpointing, data, optimizer steps."""
