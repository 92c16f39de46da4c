"""Sessions that torchrun starts: their ranks, and how their pytest processes agree."""
