"""What a session of ours loads: it measures cells, judges them, and saves what they came to."""
