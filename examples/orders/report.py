"""Step 4a: the page for people."""

import json

from sales import report
from step import given, param

if __name__ == "__main__":
    done = report(given("joined"), param("out", "out"))
    print(f"{done['report']}: {done['orders']} orders, {done['sales']:,.2f} USD, {done['late']} late")
    print("::result::", json.dumps(done))
