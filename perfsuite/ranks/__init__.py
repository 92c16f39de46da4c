"""Groups of ranks on one machine: started fresh for each cell, watched, blamed and ended.

Only `worker` imports torch, and nothing imports `worker`: a rank loads it by name.
"""
