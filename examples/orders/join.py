"""Step 3: one record an order."""

from sales import join
from step import given, result

if __name__ == "__main__":
    joined = join(given("raw"), given("cleaned"), given("enriched"))
    print(f"{len(joined['orders'])} orders joined")
    result(joined)
