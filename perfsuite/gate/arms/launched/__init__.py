"""What runs in a launch: copied into those of both arms, so it imports nothing of ours."""
