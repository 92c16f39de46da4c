"""What the recorded steps should have computed, computed again without torch.distributed.

`single_process` runs the passes; `averaging` and `powersgd` reduce the gradients of several ranks.
"""
