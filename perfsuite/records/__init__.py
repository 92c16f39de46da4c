"""Requests and records: recipes, workloads, cells, verdicts, stored runs."""
