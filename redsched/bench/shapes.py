"""The DAGs that are measured: task -> the tasks that it needs. Pure."""

from __future__ import annotations

Shape = dict[str, list[str]]


def dag20() -> Shape:
    """20 tasks in layers of 1, 6, 6, 4, 2, 1 with 40 edges."""
    needs: dict[int, list[int]] = {0: []}
    needs |= {i: [0] for i in range(1, 7)}
    needs |= {7 + i: [1 + i, 1 + (i + 1) % 6] for i in range(6)}
    needs |= {13 + i: [7 + i, 7 + (i + 1) % 6, 7 + (i + 2) % 6] for i in range(4)}
    needs |= {17: [13, 14, 15, 16], 18: [13, 14, 15, 16], 19: [17, 18]}
    return {f"t{i}": [f"t{u}" for u in ups] for i, ups in needs.items()}


def chain(length: int) -> Shape:
    return {f"t{i}": [f"t{i - 1}"] if i else [] for i in range(length)}


def fan(size: int) -> Shape:
    """One task, then all the others at once, then one that needs them all: `size` tasks together."""
    middle = [f"t{i}" for i in range(1, size - 1)]
    return {"t0": [], **{name: ["t0"] for name in middle}, "last": middle or ["t0"]}


def layers(count: int, width: int = 10) -> Shape:
    """`count` tasks in layers of `width`; each needs two of the layer above."""
    return {
        f"t{i}": []
        if i < width
        else [f"t{(i // width - 1) * width + k % width}" for k in sorted({i % width, (i + 1) % width})]
        for i in range(count)
    }
