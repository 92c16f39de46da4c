"""What one process computes, which the tested path is compared with."""
