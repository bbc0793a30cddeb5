"""Who takes part: what to install, what to start, and what each does where redsched has a join of tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from redsched.bench.shapes import Shape

ADAPTERS = Path(__file__).parent / "adapters"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "redsched-bench"
NODE = CACHE / "node"
INSTALL_S = 300


@dataclass(frozen=True)
class Peer:
    """`packages`: pinned, the first is the peer itself. `work`: its workers, `count` processes of it."""

    name: str
    packages: tuple[str, ...]
    joins: str
    work: tuple[str, ...]
    count: int = 1
    tree: bool = False  # it keeps only a tree of the edges
    flat_after: bool = True  # its workers can be started after tasks were enqueued
    node: bool = False

    @property
    def setting(self) -> str:
        return f"{self.count} × {' '.join(self.work[1:])}" if self.work else "in the submitting process"

    @property
    def program(self) -> str:
        return "node" if self.node else str(CACHE / "venvs" / self.name / "bin/python")

    @property
    def submit_command(self) -> list[str]:
        return [self.program, str(ADAPTERS / f"on_{self.name}{'.mjs' if self.node else '.py'}"), "submit"]

    def work_command(self) -> list[str]:
        return [self.program, *self.work]

    def checked(self, shape: Shape) -> Shape:
        """The edges that it promises to keep."""
        return tree_of(shape) if self.tree else shape


def tree_of(shape: Shape) -> Shape:
    """Depth first from the last task; each task stays with the first that needs it."""
    kept: Shape = {task: [] for task in shape}
    taken: set[str] = set()

    def visit(task: str) -> None:
        for need in shape[task]:
            if need not in taken:
                taken.add(need)
                kept[task].append(need)
                visit(need)

    visit(list(shape)[-1])
    return kept


PEERS = [
    Peer(
        "bullmq",
        ("bullmq@6.7.0", "ioredis@6.0.0"),
        "flows: trees, 19 of the 40 edges",
        ("on_bullmq.mjs", "work"),
        2,
        tree=True,
        node=True,
    ),
    Peer("streaq", ("streaq==7.2.0",), "real and durable", ("on_streaq.py", "work"), 2),
    Peer("rq", ("rq==2.12.0", "redis==8.1.0"), "real and durable", ("on_rq.py", "work"), 2),
    Peer(
        "celery",
        ("celery==5.7.0", "redis==8.1.0", "packaging==25.0"),
        "chords: a layer after the other",
        ("on_celery.py", "work"),
    ),
    Peer(
        "huey",
        ("huey==3.5.4", "redis==8.1.0"),
        "chords, 3 glue tasks a run; no acknowledgement",
        ("on_huey.py", "work"),
        2,
    ),
    Peer(
        "dramatiq",
        ("dramatiq==2.2.1", "redis==8.1.0"),
        "groups with callbacks, 3 glue tasks a run",
        ("-m", "dramatiq", "on_dramatiq", "--processes", "2", "--threads", "2"),
    ),
    Peer(
        "arq",
        ("arq==0.28.0", "redis==5.3.1"),
        "counted by hand in the bodies; polls each 10 ms",
        ("on_arq.py", "work"),
        2,
    ),
    Peer(
        "saq",
        ("saq==0.26.4", "redis==7.4.1", "typing_extensions"),
        "counted by hand in the bodies",
        ("on_saq.py", "work"),
        2,
    ),
    Peer(
        "taskiq",
        ("taskiq==0.13.0", "taskiq-redis==1.2.4"),
        "counted by hand in the bodies",
        ("-m", "taskiq", "worker", "on_taskiq:broker", "--workers", "2", "--log-level", "ERROR"),
    ),
    Peer("dask", ("distributed==2026.8.0",), "real, in memory: nothing is durable", (), 0, flat_after=False),
]


def installed(peer: Peer) -> str:
    """Its version; installed into the cache first if it is not there. Raises OSError or CalledProcessError."""
    return _installed_node(peer) if peer.node else _installed_python(peer)


def _installed_python(peer: Peer) -> str:
    venv = CACHE / "venvs" / peer.name
    if not (venv / "ready").exists():
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        _run([peer.program, "-m", "pip", "install", "-q", "--disable-pip-version-check", *peer.packages])
        (venv / "ready").touch()
    name = peer.packages[0].partition("==")[0]
    return _run([peer.program, "-c", f"from importlib.metadata import version; print(version({name!r}))"])


def _installed_node(peer: Peer) -> str:
    name = peer.packages[0].rpartition("@")[0]
    package = NODE / "node_modules" / name / "package.json"
    if not package.exists():
        NODE.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(NODE), *peer.packages])
    return str(json.loads(package.read_text())["version"])


def _run(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S, check=True)
    return done.stdout.strip()
