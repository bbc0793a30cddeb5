"""The same workloads for redsched and for others, side by side in one run: `python -m bench.peers`."""
