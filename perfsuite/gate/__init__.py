"""The gate: is head slower than its base, with known error rates. Re-exports nothing."""
