"""The stored times of one cell along its commits."""
