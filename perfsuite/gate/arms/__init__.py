"""The two source trees that are compared: how they are launched, and who has the turn."""
