"""Built-in workloads: models with their loss, and data that are the same for the same seed.

Must not know how they are trained or measured. A workload is named in `perfsuite.records.workload`.
"""
