"""redsched: a lightweight scheduler for workflows that lives in one Redis."""
