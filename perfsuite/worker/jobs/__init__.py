"""What a rank is asked to do: measure a cell, profile it, verify it, plant a fault in it."""
