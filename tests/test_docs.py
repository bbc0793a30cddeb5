"""What the documents say is there: links, the tests that guarantees name, and the smallest programs of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from redsched.definition.config import load_paths

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/orders/README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_tests_that_guarantees_name_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")))
    written = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    assert named
    assert not named - written, "guarantees.md names tests that are not there"


def test_the_smallest_dags_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:yaml|python)\n# dags/(\w+\.\w+)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["hello.yaml", "sums.py"]
    for name, body in blocks:
        (tmp_path / name).write_text(body, encoding="utf-8")
    loaded = load_paths([tmp_path])
    assert [(one.dag and one.dag.dag, one.error) for one in loaded] == [("hello", None), ("sums", None)]


def test_ci_runs_the_lines_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("python3 -m venv .venv && ")]
    assert len(lines) == 2
    assert lines[0].endswith("--once orders")
    assert lines[1].endswith("pytest -q")
