"""Built-in workloads: models with their loss, and data that are the same for the same seed.

`perfsuite.records.workload` names them.
"""
