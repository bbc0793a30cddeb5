"""The six steps of the daily sales report as plain functions: JSON in, JSON out, nothing of redsched.

`orders.yaml` runs them as commands, `orders_py.py` as Python tasks. A report knows what was known at the end of its
day and nothing later, so the same day gives the same report whenever it is made.
"""

from __future__ import annotations

import csv
import os
from collections import Counter, defaultdict
from datetime import date, timedelta
from pathlib import Path
from string import capwords
from typing import Any

from page import render

DATA = Path(__file__).resolve().parent / "data"
EXPORTED = ("order", "customer", "country", "city", "ordered", "required", "shipped", "status", "items")


# ── extract ──────────────────────────────────────────────────────────────────────────────────────


def extract(day: str, days: int) -> dict[str, Any]:
    """The orders placed in the `days` days up to `day`, and older ones that were not shipped before; as they are."""
    until = date.fromisoformat(day)
    since = until - timedelta(days=days - 1)
    orders = [order for order in rows("orders.csv") if wanted(order, since.isoformat(), day)]
    ids = {order["id"] for order in orders}
    return {
        "day": day,
        "since": since.isoformat(),
        "orders": orders,
        "lines": [line for line in rows("order_details.csv") if line["orderId"] in ids],
    }


def rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def wanted(order: dict[str, str], since: str, day: str) -> bool:
    placed, shipped = order["orderDate"][:10], order["shippedDate"]
    return placed <= day and (placed >= since or shipped == "NULL" or shipped[:10] >= since)


# ── clean, enrich ────────────────────────────────────────────────────────────────────────────────


def clean(raw: dict[str, Any]) -> dict[str, Any]:
    """Real dates and numbers; orders that make no sense are counted and left out."""
    orders: dict[str, dict[str, Any]] = {}
    for order in raw["orders"]:
        placed, required = day_of(order["orderDate"]), day_of(order["requiredDate"])
        if not placed or not required or required < placed or order["id"] in orders:
            continue
        shipped = day_of(order["shippedDate"])
        orders[order["id"]] = {
            "order": int(order["id"]),
            "customer": order["customerKey"],
            "city": order["shipCity"].strip().lstrip("0123456789 "),
            "ordered": placed,
            "required": required,
            "shipped": shipped if shipped and shipped <= raw["day"] else None,
            "freight": float(order["freight"]),
        }
    return {"orders": list(orders.values()), "rejected": len(raw["orders"]) - len(orders)}


def day_of(stamp: str) -> str | None:
    """`1998-04-30 00:00:00.000` as `1998-04-30`; None for NULL and nonsense."""
    try:
        return date.fromisoformat(stamp[:10]).isoformat()
    except ValueError:
        return None


def enrich(raw: dict[str, Any]) -> dict[str, Any]:
    """What was sold, with names and amounts, by order; and who the customers are."""
    products = {product["id"]: product for product in rows("products.csv")}
    items: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in raw["lines"]:
        product, quantity = products[line["productId"]], int(line["quantity"])
        amount = float(line["unitPrice"]) * quantity * (1 - float(line["discount"]))
        items[line["orderId"]].append(
            {
                "product": product["name"],
                "category": product["category"],
                "quantity": quantity,
                "amount": round(amount, 2),
            }
        )
    keys = {order["customerKey"] for order in raw["orders"]}
    customers = {
        customer["customerKey"]: {"name": capwords(customer["companyName"]), "country": customer["country"]}
        for customer in rows("customers.csv")
        if customer["customerKey"] in keys
    }
    return {"items": items, "customers": customers}


# ── join ─────────────────────────────────────────────────────────────────────────────────────────


def join(raw: dict[str, Any], cleaned: dict[str, Any], enriched: dict[str, Any]) -> dict[str, Any]:
    """One record an order, with its status at the end of the day."""
    orders = []
    for order in cleaned["orders"]:
        customer = enriched["customers"][order["customer"]]
        items = enriched["items"].get(str(order["order"]), [])
        orders.append(
            {
                **order,
                "customer": customer["name"],
                "country": customer["country"],
                "items": items,
                "amount": round(sum(item["amount"] for item in items), 2),
                "status": status(order, raw["day"]),
            }
        )
    return {
        "day": raw["day"],
        "since": raw["since"],
        "rejected": cleaned["rejected"],
        "orders": sorted(orders, key=lambda order: order["order"]),
    }


def status(order: dict[str, Any], day: str) -> str:
    shipped, required = order["shipped"], order["required"]
    if shipped:
        return "shipped late" if shipped > required else "shipped"
    return "overdue" if day > required else "open"


# ── report, export ───────────────────────────────────────────────────────────────────────────────


def report(joined: dict[str, Any], out: str) -> dict[str, Any]:
    """The page for people: out/orders-<day>.html."""
    facts = summary(joined)
    path = write(Path(out) / f"orders-{joined['day']}.html", render(facts))
    totals = facts["totals"]
    return {"report": path, "orders": totals["orders"], "sales": totals["sales"], "late": len(facts["late"])}


def summary(joined: dict[str, Any]) -> dict[str, Any]:
    """Everything the page shows, as numbers."""
    day, since = joined["day"], joined["since"]
    window = [order for order in joined["orders"] if order["ordered"] >= since]
    items = [item for order in window for item in order["items"]]
    sales_by_day, orders_by_day = summed((order["ordered"], order["amount"]) for order in window)
    amounts, pieces = summed((item["product"], item["amount"]) for item in items)[0], Counter[str]()
    for item in items:
        pieces[item["product"]] += item["quantity"]
    countries, counts = summed((order["country"], order["amount"]) for order in window)
    late = [order for order in joined["orders"] if order["status"] in ("shipped late", "overdue")]
    return {
        "day": day,
        "since": since,
        "rejected": joined["rejected"],
        "yesterday": [order for order in window if order["ordered"] == day],
        "totals": {
            "orders": len(window),
            "sales": round(sum(order["amount"] for order in window), 2),
            "freight": round(sum(order["freight"] for order in window), 2),
            "customers": len({order["customer"] for order in window}),
        },
        "by_day": [
            (each, orders_by_day[each], round(sales_by_day[each], 2)) for each in every_day(since, day)
        ],
        "top_products": [(name, pieces[name], amount) for name, amount in ranked(amounts)[:10]],
        "categories": ranked(summed((item["category"], item["amount"]) for item in items)[0]),
        "countries": [(name, counts[name], amount) for name, amount in ranked(countries)],
        "late": sorted(late, key=lambda order: (order["status"], order["required"], order["order"])),
        "open": sum(order["status"] == "open" for order in joined["orders"]),
    }


def summed(pairs: Any) -> tuple[dict[str, float], Counter[str]]:
    """The sum and the count of each name."""
    sums: dict[str, float] = defaultdict(float)
    counts = Counter[str]()
    for name, amount in pairs:
        sums[name] += amount
        counts[name] += 1
    return sums, counts


def ranked(sums: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(
        ((name, round(value, 2)) for name, value in sums.items()), key=lambda pair: (-pair[1], pair[0])
    )


def every_day(since: str, day: str) -> list[str]:
    first, last = date.fromisoformat(since), date.fromisoformat(day)
    return [(first + timedelta(days=i)).isoformat() for i in range((last - first).days + 1)]


def export(joined: dict[str, Any], out: str) -> dict[str, Any]:
    """The table for spreadsheets: out/orders-<day>.csv, one line an order."""
    lines = [(*EXPORTED, "freight", "amount")]
    for order in joined["orders"]:
        cells = {**order, "shipped": order["shipped"] or "", "items": len(order["items"])}
        lines.append(
            (*(cells[name] for name in EXPORTED), f"{order['freight']:.2f}", f"{order['amount']:.2f}")
        )
    path = Path(out) / f"orders-{joined['day']}.csv"
    part = draft(path)
    with part.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    part.replace(path)
    return {"csv": str(path), "rows": len(lines) - 1}


def write(path: Path, text: str) -> str:
    part = draft(path)
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return str(path)


def draft(path: Path) -> Path:
    """Written beside and then moved, because a task may run twice and a reader must never see half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}")
