"""The machine and its files."""
