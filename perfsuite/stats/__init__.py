"""Mathematics alone: intervals, the sequential rule, change points, drift, power."""
