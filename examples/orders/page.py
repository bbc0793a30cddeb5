"""The report as one HTML page without anything from outside: it can be mailed, printed and kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
.lead { color: #666; margin-top: .2rem; } .two { display: flex; gap: 3rem; flex-wrap: wrap; }
.two > div { flex: 1 1 20rem; }
.facts { display: flex; gap: 1rem; flex-wrap: wrap; margin: 1.5rem 0; }
.fact { flex: 1 1 6.5rem; border: 1px solid #ddd; border-radius: 6px; padding: .6rem .9rem; }
.fact b { display: block; font-size: 1.4rem; } .fact span { color: #666; font-size: .85rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: #666; font-weight: 600; }
th, td { border-bottom: 1px solid #eee; padding: .25rem .6rem .25rem 0; vertical-align: top; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bad { color: #b3261e; } .bar { fill: #4a7ebb; } .bar.today { fill: #d97b29; } small { color: #666; }
"""


def render(facts: dict[str, Any]) -> str:
    day, totals = facts["day"], facts["totals"]
    late = facts["late"]
    overdue = sum(order["status"] == "overdue" for order in late)
    parts = [
        f"<h1>Orders of {long_day(day)}</h1>",
        f'<p class="lead">With the {len(facts["by_day"])} days from {facts["since"]} to {day}. '
        f"As known at the end of {day}.</p>",
        tiles(
            (
                (len(facts["yesterday"]), "orders on the day"),
                (money(sum(order["amount"] for order in facts["yesterday"])), "sales on the day"),
                (totals["orders"], "orders in the period"),
                (money(totals["sales"]), "sales in the period"),
                (facts["open"], "waiting, in time"),
                (overdue, "overdue"),
            )
        ),
        "<h2>Orders of the day</h2>",
        orders_table(facts["yesterday"]),
        "<h2>Sales by day</h2>",
        chart(facts["by_day"], day),
        '<div class="two"><div><h2>Top products</h2>',
        table(("Product", "Pieces", "Sales"), ((n, p, money(a)) for n, p, a in facts["top_products"])),
        "</div><div><h2>Categories</h2>",
        table(("Category", "Sales", "Share"), shares(facts["categories"], totals["sales"])),
        "</div></div>",
        "<h2>Sales by country</h2>",
        table(
            ("Country", "Orders", "Sales", "An order"),
            ((name, n, money(amount), money(amount / n)) for name, n, amount in facts["countries"]),
        ),
        "<h2>Late shipments</h2>",
        late_table(late, day),
        f"<p><small>{totals['customers']} customers, freight {money(totals['freight'])}, "
        f"{facts['rejected']} orders left out because their record makes no sense. Amounts in USD after "
        "discount. Data: Northwind, see examples/orders/data/SOURCE.md.</small></p>",
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>Orders of {day}</title>\n<style>{STYLE}</style>\n<body>\n{body}\n</body>\n</html>\n"
    )


def long_day(day: str) -> str:
    at = date.fromisoformat(day)
    return f"{at:%A}, {at.day} {at:%B %Y}"


def money(amount: float) -> str:
    return f"{amount:,.2f}"


def tiles(facts: Iterable[tuple[object, str]]) -> str:
    inner = "".join(
        f'<div class="fact"><b>{value}</b><span>{escape(label)}</span></div>' for value, label in facts
    )
    return f'<div class="facts">{inner}</div>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The first column is text, the others are numbers."""
    lines = [cells("th", heads), *(cells("td", row) for row in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>" if len(lines) > 1 else "<p>Nothing.</p>"


def cells(tag: str, values: Sequence[object]) -> str:
    first, *others = (escape(str(value)) for value in values)
    numbers = "".join(f'<{tag} class="n">{value}</{tag}>' for value in others)
    return f"<tr><{tag}>{first}</{tag}>{numbers}</tr>"


def shares(sums: Iterable[tuple[str, float]], total: float) -> Iterable[tuple[str, str, str]]:
    return ((name, money(amount), f"{100 * amount / total:.1f} %") for name, amount in sums)


def orders_table(orders: Sequence[dict[str, Any]]) -> str:
    if not orders:
        return "<p>No orders on this day.</p>"
    lines = ["<tr><th>Order</th><th>Customer</th><th>What</th><th>Due</th><th class='n'>Sales</th></tr>"]
    for order in orders:
        what = "<br>".join(f"{item['quantity']} × {escape(item['product'])}" for item in order["items"])
        lines.append(
            f"<tr><td>{order['order']}</td><td>{escape(order['customer'])}<br>"
            f"<small>{escape(order['city'])}, {escape(order['country'])}</small></td><td>{what}</td>"
            f"<td>{order['required']}</td><td class='n'>{money(order['amount'])}</td></tr>"
        )
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def late_table(orders: Sequence[dict[str, Any]], day: str) -> str:
    if not orders:
        return "<p>None: everything was shipped in time or is not due yet.</p>"
    rows = []
    for order in orders:
        until = date.fromisoformat(order["shipped"] or day)
        days = (until - date.fromisoformat(order["required"])).days
        rows.append(
            f"<tr><td>{order['order']}</td><td>{escape(order['customer'])}, {escape(order['country'])}</td>"
            f"<td>{order['required']}</td><td>{order['shipped'] or '<b class=bad>not shipped</b>'}</td>"
            f"<td class='n'>{days}</td><td class='n'>{money(order['amount'])}</td></tr>"
        )
    head = "<tr><th>Order</th><th>Customer</th><th>Due</th><th>Shipped</th>"
    head += "<th class='n'>Days late</th><th class='n'>Sales</th></tr>"
    return f"<table>\n{head}\n" + "\n".join(rows) + "\n</table>"


def chart(days: Sequence[tuple[str, int, float]], today: str) -> str:
    """One bar a day; the title of a bar says its numbers."""
    top = max((amount for _, _, amount in days), default=0) or 1
    width, height = 900, 120
    step = width / len(days)
    bars = []
    for i, (day, orders, amount) in enumerate(days):
        tall = height * amount / top
        kind = "bar today" if day == today else "bar"
        bars.append(
            f'<rect class="{kind}" x="{i * step:.1f}" y="{height - tall:.1f}" width="{step * 0.8:.1f}" '
            f'height="{tall:.1f}"><title>{day}: {orders} orders, {money(amount)}</title></rect>'
        )
    ends = f'<text x="0" y="{height + 16}">{days[0][0]}</text>'
    ends += f'<text x="{width}" y="{height + 16}" text-anchor="end">{days[-1][0]}</text>'
    return (
        f'<svg viewBox="0 0 {width} {height + 20}" role="img" aria-label="Sales by day, highest {money(top)}" '
        f'font-size="13" fill="#666">\n' + "\n".join(bars) + f"\n{ends}\n</svg>"
    )
