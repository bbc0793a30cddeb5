"""The same as `redsched bench dag20`, from the source."""

from bench import main
from redsched.bench.workloads import ALL

if __name__ == "__main__":
    main(ALL["dag20"])
