"""The ranks of a user's command, which a launcher of the user's starts. Runs in the controller."""
