"""From pairs of launches to the verdict of each cell."""
