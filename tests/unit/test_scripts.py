"""The script loader, and the expanded scripts as they are reviewed.

A change in `lua/lib` shows here in every script it reaches. After a wanted change: `REDSCHED_GOLDEN=1 pytest tests/unit/test_scripts.py`
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from redsched.errors import RedschedError
from redsched.store.scripts import all_scripts, expand, parse

GOLDEN = Path(__file__).parent.parent / "golden"


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_each_include_is_put_in_once_in_order_of_need(tmp_path: Path) -> None:
    write(tmp_path, "lib/a.lua", "local a = {}\n")
    write(tmp_path, "lib/b.lua", "-- include: lib/a.lua\nlocal b = {}\n")
    write(tmp_path, "s/x.lua", "-- include: lib/b.lua\n-- include: lib/a.lua\nreturn 1\n")
    definitions, main = expand("s/x.lua", tmp_path, set())
    assert definitions == "local a = {}\nlocal b = {}\n"
    assert main == "return 1\n"


def test_a_cycle_and_a_missing_include_are_refused_with_the_chain(tmp_path: Path) -> None:
    write(tmp_path, "lib/a.lua", "-- include: lib/b.lua\n")
    write(tmp_path, "lib/b.lua", "-- include: lib/a.lua\n")
    with pytest.raises(RedschedError, match=r"lib/a\.lua -> lib/b\.lua -> lib/a\.lua"):
        expand("lib/a.lua", tmp_path, set())
    write(tmp_path, "lib/c.lua", "-- include: lib/nowhere.lua\n")
    with pytest.raises(RedschedError, match=r"lib/nowhere\.lua.*lib/c\.lua"):
        expand("lib/c.lua", tmp_path, set())


def test_keys_and_args_become_named_locals(tmp_path: Path) -> None:
    write(
        tmp_path,
        "s/x.lua",
        "-- x: does x.\n-- cell: shard\n-- keys: owner inbox\n-- args: token ...\nreturn 1\n",
    )
    script = parse("s/x", tmp_path)
    assert (script.keys, script.args, script.cell) == (("owner", "inbox"), ("token", "..."), "shard")
    for text in (script.plain, script.library):
        assert "local inbox = KEYS[2]" in text
        assert "local token = ARGV[1]" in text
    assert script.library.startswith(f"#!lua name={script.function}\n")


@pytest.mark.parametrize("name", sorted(all_scripts()))
def test_the_expanded_script_is_the_reviewed_one(name: str) -> None:
    path = GOLDEN / f"{name}.lua"
    if os.environ.get("REDSCHED_GOLDEN"):
        write(GOLDEN, f"{name}.lua", all_scripts()[name].plain)
    assert path.exists(), f"{path} is missing: run with REDSCHED_GOLDEN=1 and review it"
    assert path.read_text() == all_scripts()[name].plain


def test_no_golden_copy_is_left_of_a_script_that_is_gone() -> None:
    kept = {p.relative_to(GOLDEN).with_suffix("").as_posix() for p in GOLDEN.rglob("*.lua")}
    assert kept == set(all_scripts())
