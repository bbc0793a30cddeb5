"""What redsched costs: each module is one workload, `bench/README.md` says what its numbers mean."""
