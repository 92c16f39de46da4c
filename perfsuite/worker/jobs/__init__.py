"""What a rank can be asked to do, one module a job; the others serve those. Runs in a rank."""
