"""One scheduler and one worker with nothing to do: commands a second and CPU."""

from __future__ import annotations

import argparse
import time

from bench.installation import installation, report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    a = parser.parse_args()
    with installation() as made:
        time.sleep(6)  # past the first beats of everybody
        before, cpu = made.counters(), made.cpu_s()
        time.sleep(a.seconds)
        after, spent = made.counters(), made.cpu_s() - cpu
        report(
            "idle",
            {
                "seconds": a.seconds,
                "commands_per_s": (after["commands"] - before["commands"]) / a.seconds,
                "cpu_percent": spent / a.seconds * 100,
                "redis_cpu_percent": (after["cpu_us"] - before["cpu_us"]) / a.seconds / 1e4,
            },
            made.client,
        )


if __name__ == "__main__":
    main()
