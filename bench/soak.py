"""Before a release: ten minutes of real kills, stops, cuts and wrong clocks under load; what was lost, stuck or done twice.

`python -m bench.soak` prints a report on stderr and one JSON document on stdout. Exit 1: a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from redsched.bench.machine import load, where
from tests.faults.soak import Soak, run


def main() -> int:
    plan = Soak()
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=plan.seed, help="of the order of faults")
    parser.add_argument(
        "--kills", type=int, default=plan.kills, help="of schedulers, workers, children and the server"
    )
    parser.add_argument("--others", type=int, default=plan.others, help="other faults")
    parser.add_argument("--seconds", type=float, default=plan.seconds, help="over which they are spread")
    given = parser.parse_args()
    folder, busy = Path(tempfile.mkdtemp(prefix="redsched-soak-")), load()
    with (folder / "said").open("w") as said, redirect_stdout(said):
        report = run(folder, Soak(**vars(given)))
    print(report.text(), file=sys.stderr)
    print(json.dumps({"workload": "soak", **where(report.server, busy), **report.numbers()}))
    if report.ok:
        shutil.rmtree(folder)
        return 0
    print(f"logs, trail and data: {folder}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
