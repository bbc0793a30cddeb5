"""The same as `redsched bench flat`, from the source."""

from bench import main
from redsched.bench.workloads import ALL

if __name__ == "__main__":
    main(ALL["flat"])
