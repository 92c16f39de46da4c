"""What a training run did on its ranks: recorded there, joined, and kept for the checks."""
