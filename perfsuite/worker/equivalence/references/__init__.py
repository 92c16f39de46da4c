"""What the recorded steps should have computed, computed again without torch.distributed."""
