"""Whether this machine is fit for timing."""
