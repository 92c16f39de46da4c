"""Whether a recipe computes the same mathematics as one process, and whether that check can fail.

The tested path is recorded on its ranks (`recording`), then compared in one process that knows no
torch.distributed (`checks`). Every limit is derived (`limits`), and every check is given bugs that
it must find (`bugs`).
"""
