"""Definitions of DAGs: what people write, checked and compiled. Knows nothing of Redis."""
