"""What is done with cells on ranks: verify, profile, compare, sweep, test claims."""
