"""`python -m redsched` is the command `redsched`."""

from __future__ import annotations

from redsched.cli.main import main

if __name__ == "__main__":
    main()
