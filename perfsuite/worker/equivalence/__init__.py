"""Whether a recipe computes the same mathematics as one process, and whether a check could fail.

The run under test is recorded on its ranks (`trace`), then checked in one process without
torch.distributed (`checks`) against references that compute the same steps anew (`references`).
Every limit is derived (`limits`), and every check must find bugs planted for it (`planted_bugs`).
"""
