"""What runs in a rank. The only folder that imports torch; it is loaded by name."""
