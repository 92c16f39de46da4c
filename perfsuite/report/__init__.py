"""Reports from records. Must not know how anything was measured."""
