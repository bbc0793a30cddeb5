"""Step 2b: names of products and customers, amounts."""

from sales import enrich
from step import given, result

if __name__ == "__main__":
    enriched = enrich(given("raw"))
    print(f"{len(enriched['items'])} orders with items, {len(enriched['customers'])} customers")
    result(enriched)
