"""What is asked for and what is kept: recipes, workloads, cells, verdicts, stored runs."""
