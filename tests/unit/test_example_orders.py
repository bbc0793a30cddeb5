"""The example's own parts: what counts as late, what a bad record does, and that both pipelines make the same page."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders"
DAY, DAYS = "1998-04-30", 30


@pytest.fixture
def sales() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield importlib.import_module("sales")


@pytest.fixture
def joined(sales: Any) -> dict[str, Any]:
    raw = sales.extract(DAY, DAYS)
    result: dict[str, Any] = sales.join(raw, sales.clean(raw), sales.enrich(raw))
    return result


def order(**changes: str) -> dict[str, str]:
    return {
        "id": "1",
        "customerKey": "ALFKI",
        "orderDate": "1998-04-01 00:00:00.000",
        "requiredDate": "1998-04-20 00:00:00.000",
        "shippedDate": "NULL",
        "freight": "1.5",
        "shipCity": "12Rio de Janeiro",
        "shipCountry": "Brazil",
        **changes,
    }


def test_each_order_of_the_day_is_there_and_none_of_the_future(joined: dict[str, Any]) -> None:
    with (EXAMPLE / "data/orders.csv").open(encoding="utf-8", newline="") as file:
        ids = {int(row["id"]) for row in csv.DictReader(file) if row["orderDate"].startswith(DAY)}
    assert ids and {o["order"] for o in joined["orders"] if o["ordered"] == DAY} == ids
    assert max(o["ordered"] for o in joined["orders"]) == DAY
    assert all(o["shipped"] is None or o["shipped"] <= DAY for o in joined["orders"])


@pytest.mark.parametrize(
    ("shipped", "required", "status"),
    [
        ("1998-04-19", "1998-04-20", "shipped"),
        ("1998-04-21", "1998-04-20", "shipped late"),
        (None, "1998-04-30", "open"),
        (None, "1998-04-29", "overdue"),
    ],
)
def test_late_means_after_the_required_day(
    sales: Any, shipped: str | None, required: str, status: str
) -> None:
    assert sales.status({"shipped": shipped, "required": required}, DAY) == status


def test_bad_records_are_counted_and_left_out(sales: Any) -> None:
    bad = [order(id="2", orderDate="soon"), order(id="3", requiredDate="1998-03-01"), order()]
    cleaned = sales.clean({"day": DAY, "orders": [order(), *bad]})
    assert [o["order"] for o in cleaned["orders"]] == [1]
    assert cleaned["rejected"] == 3
    assert cleaned["orders"][0]["city"] == "Rio de Janeiro"


def test_what_happened_after_the_day_is_not_known_yet(sales: Any) -> None:
    late = order(shippedDate="1998-05-05 00:00:00.000")
    assert sales.clean({"day": DAY, "orders": [late]})["orders"][0]["shipped"] is None


def test_the_sums_agree_with_the_lines(sales: Any, joined: dict[str, Any]) -> None:
    facts = sales.summary(joined)
    total = facts["totals"]["sales"]
    for parts in (facts["categories"], facts["countries"], facts["by_day"]):
        assert sum(row[-1] for row in parts) == pytest.approx(total, abs=0.5)
    assert len(facts["by_day"]) == DAYS


def test_a_day_without_orders_still_has_a_page(sales: Any, tmp_path: Path) -> None:
    raw = sales.extract("1997-01-01", 1)
    done = sales.report(sales.join(raw, sales.clean(raw), sales.enrich(raw)), str(tmp_path))
    assert done["orders"] == 0
    assert "No orders on this day" in Path(done["report"]).read_text(encoding="utf-8")


def test_names_are_escaped_in_the_page(sales: Any, joined: dict[str, Any], tmp_path: Path) -> None:
    joined["orders"][-1]["customer"] = "<script>alert(1)</script>"
    page = Path(sales.report(joined, str(tmp_path))["report"]).read_text(encoding="utf-8")
    assert "<script>" not in page


@pytest.mark.parametrize("days", [DAYS, 92])  # 92 days make a result that no variable can hold
def test_commands_and_functions_make_the_same_files(sales: Any, tmp_path: Path, days: int) -> None:
    raw = sales.extract(DAY, days)
    joined = sales.join(raw, sales.clean(raw), sales.enrich(raw))
    made = [sales.report(joined, str(tmp_path / "a")), sales.export(joined, str(tmp_path / "a"))]

    results: dict[str, Any] = {}
    for step, inputs in {
        "extract": {},
        "clean": {"raw": "extract"},
        "enrich": {"raw": "extract"},
        "join": {"raw": "extract", "cleaned": "clean", "enriched": "enrich"},
        "report": {"joined": "join"},
        "export": {"joined": "join"},
    }.items():
        given = {name: results[source] for name, source in inputs.items()}
        results[step] = command(tmp_path, step, given, days)

    names = [f"orders-{DAY}.html", f"orders-{DAY}.csv"]
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == sorted(names)
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert [results["report"]["sales"], results["export"]["rows"]] == [made[0]["sales"], made[1]["rows"]]


def command(folder: Path, step: str, given: dict[str, Any], days: int) -> Any:
    """Run a step as a worker does, with what the interface promises around it."""
    inputs, result = folder / f"{step}-inputs", folder / f"{step}-result"
    inputs.write_text(json.dumps(given), encoding="utf-8")
    env = {**os.environ, "REDSCHED_INPUTS": str(inputs), "REDSCHED_RESULT": str(result)}
    env |= {
        "REDSCHED_PARAM_DAY": DAY,
        "REDSCHED_PARAM_DAYS": str(days),
        "REDSCHED_PARAM_OUT": str(folder / "b"),
    }
    texts = {f"REDSCHED_INPUT_{name.upper()}": json.dumps(value) for name, value in given.items()}
    env |= {name: text for name, text in texts.items() if len(text) < 100_000}
    done = subprocess.run(
        [sys.executable, EXAMPLE / f"{step}.py"], env=env, check=True, capture_output=True, text=True
    )
    last = done.stdout.splitlines()[-1]
    if last.startswith("::result::"):
        return json.loads(last.removeprefix("::result::"))
    return json.loads(result.read_text(encoding="utf-8"))


def test_the_python_dag_runs_in_one_process(tmp_path: Path, sales: Any) -> None:
    run = importlib.import_module("orders_py").orders_py.test(day=DAY, days=7, out=str(tmp_path))
    assert run.state == "success"
    assert Path(run.result("report")["report"]).is_file()
    assert run.result("export")["rows"] > 0


def test_the_data_names_its_source_and_stays_small() -> None:
    assert "MIT" in (EXAMPLE / "data/SOURCE.md").read_text(encoding="utf-8")
    assert sum(p.stat().st_size for p in (EXAMPLE / "data").iterdir()) < 100_000
