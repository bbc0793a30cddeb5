"""The pipeline of `orders.yaml` as Python functions: what one returns is what the next one gets.

redsched up examples/orders --once orders_py
"""

from __future__ import annotations

from typing import Any

import sales
from redsched import context, dag, task

Json = dict[str, Any]


@task
def extract(day: str, days: int) -> Json:
    found = sales.extract(day, days)
    context().log.info("%d orders, %s to %s", len(found["orders"]), found["since"], found["day"])
    return found


@task
def clean(raw: Json) -> Json:
    return sales.clean(raw)


@task
def enrich(raw: Json) -> Json:
    return sales.enrich(raw)


@task
def join(raw: Json, cleaned: Json, enriched: Json) -> Json:
    return sales.join(raw, cleaned, enriched)


@task(retries=5, retry_backoff=2)
def report(joined: Json, out: str) -> Json:
    return sales.report(joined, out)


@task
def export(joined: Json, out: str) -> Json:
    return sales.export(joined, out)


@dag(
    description="Yesterday's orders, in Python",
    team="sales",
    params={
        "day": {"type": "string", "format": "date", "default": "1998-04-30"},
        "days": {"type": "integer", "minimum": 1, "maximum": 92, "default": 30},
        "out": "out",
    },
    defaults={"retries": 2, "retry_delay": "5s", "timeout": "1m"},
)
def orders_py(day: str, days: int, out: str) -> None:
    raw = extract(day, days)
    joined = join(raw, clean(raw), enrich(raw))
    report(joined, out)
    export(joined, out)


if __name__ == "__main__":  # without Redis, for a debugger
    run = orders_py.test()
    print(run.state, run.result("report"))
