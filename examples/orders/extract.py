"""Step 1: the orders of the period, as they are."""

from sales import extract
from step import param, result

if __name__ == "__main__":
    found = extract(param("day", "1998-04-30"), int(param("days", "30")))
    print(
        f"{len(found['orders'])} orders with {len(found['lines'])} lines, {found['since']} to {found['day']}"
    )
    result(found)
