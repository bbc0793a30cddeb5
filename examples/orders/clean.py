"""Step 2a: real dates and numbers."""

from sales import clean
from step import given, result

if __name__ == "__main__":
    cleaned = clean(given("raw"))
    print(f"{len(cleaned['orders'])} orders, {cleaned['rejected']} rejected")
    result(cleaned)
