"""What a training step did on its ranks, recorded for the comparison."""
