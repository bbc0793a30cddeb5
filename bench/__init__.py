"""What redsched does and costs: each module is one measurement, `bench/README.md` says what its numbers mean."""

from __future__ import annotations

from redsched.bench.workloads import Workload


def main(workload: Workload) -> None:
    """`python -m bench.<workload>`: options, table and JSON are those of `redsched bench`."""
    from redsched.cli.bench import command

    command(workload)(prog_name=f"python -m bench.{workload.name}")
