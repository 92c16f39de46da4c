"""What the gate asks git: the base, its tree, the files that are laid over it."""
