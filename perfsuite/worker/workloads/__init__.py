"""The workloads that `perfsuite.records.workload` names; data are the same for the same seed."""
