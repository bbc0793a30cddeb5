"""One measurement from start to end: the installation, the workload, the server's own limit in the same minute, the place."""

from __future__ import annotations

from typing import Any, Final

from redsched.bench.machine import load, where
from redsched.bench.probe import evalsha_per_s
from redsched.bench.site import Setup, Site, site
from redsched.bench.workloads import Size, Workload

FAULTS: Final = ("lost", "doubled", "disordered", "failed_runs")


def measure(workload: Workload, setup: Setup, size: Size) -> dict[str, Any]:
    """The numbers of a workload by name. Raises Unavailable if the installation does not come up."""
    busy = load()
    with site(setup) as made:
        before = evalsha_per_s(made)
        numbers = workload.run(made, size)
        limit = (before + evalsha_per_s(made)) / 2
        place = where(server_text(made), busy)
    if "tasks_per_s" in numbers:
        numbers |= {"share_of_evalsha": numbers["tasks_per_s"] / limit}
    return {
        "workload": workload.name,
        **numbers,
        "evalsha_per_s": limit,
        "schedulers": setup.schedulers,
        "workers": setup.workers,
        "concurrency": setup.concurrency,
        "aof": setup.aof if setup.redis is None else None,
        "private_server": setup.redis is None,
        **place,
    }


def server_text(made: Site) -> str:
    from redsched.store.connect import server

    found = server(made.client.store.client)
    return f"{found.name} {found.version}"


def faults_of(result: dict[str, Any]) -> dict[str, int]:
    """What must be 0 and is not."""
    return {name: result[name] for name in FAULTS if result.get(name)}
