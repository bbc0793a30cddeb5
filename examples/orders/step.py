"""How a command of `orders.yaml` gets its parameters and inputs, and gives its result: environment variables, a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def param(name: str, default: str) -> str:
    return os.environ.get(f"REDSCHED_PARAM_{name.upper()}", default)


def given(name: str) -> Any:
    """What `with:` gives under this name. A value too big for a variable is in the file $REDSCHED_INPUTS alone."""
    text = os.environ.get(f"REDSCHED_INPUT_{name.upper()}")
    if text is not None:
        return json.loads(text)
    return json.loads(Path(os.environ["REDSCHED_INPUTS"]).read_text(encoding="utf-8"))[name]


def result(value: Any) -> None:
    """A big result goes into the file $REDSCHED_RESULT; a small one may be printed as `::result:: {json}`."""
    text = json.dumps(value, ensure_ascii=False)
    if path := os.environ.get("REDSCHED_RESULT"):
        Path(path).write_text(text, encoding="utf-8")
    else:
        print(text)
