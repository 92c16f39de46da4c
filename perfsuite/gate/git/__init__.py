"""Git for the gate: the base, its tree, the files that are laid over it."""
