"""Reports made from records alone, in every format."""
