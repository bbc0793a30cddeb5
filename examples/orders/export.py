"""Step 4b: the table for spreadsheets."""

import json

from sales import export
from step import given, param

if __name__ == "__main__":
    done = export(given("joined"), param("out", "out"))
    print(f"{done['csv']}: {done['rows']} rows")
    print("::result::", json.dumps(done))
