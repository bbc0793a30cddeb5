"""Where a number was measured: the machine, the versions, the command. A number without them is decoration."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from redsched.settings import mask_url


def machine() -> str:
    """`AMD EPYC, 2 cores, 24 GiB, Linux 6.1 x86_64`."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}"
    return f"{_processor()}, {cores()} cores, {size:.0f} GiB, {system}"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("redsched", "redis", "hiredis"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "source" if name == "redsched" else "none"
    return found


def load() -> float:
    """Processes that wanted to run over the last minute: near 0 on a quiet machine."""
    return round(os.getloadavg()[0], 2)


def command(words: Sequence[str] | None = None) -> str:
    """The command as it may be shown: no password."""
    words = sys.argv if words is None else words
    module = _module(Path(words[0]))
    program = ["python", "-m", module] if module.startswith("bench.") else ["redsched"]
    return shlex.join(program + [mask_url(word) if "://" in word else word for word in words[1:]])


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    names = [name for name in parts[-3:] if name != "__main__"]
    return ".".join(names[names.index("bench") :]) if "bench" in names and path.suffix == ".py" else ""


def where(server: str, busy: float) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": machine(),
        "load": busy,
        "server": server,
        "versions": versions(),
        "command": command(),
    }
