"""Sessions that torchrun starts: who takes part, and how their pytest processes agree."""
