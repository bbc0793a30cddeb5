"""What ships: the wheel brings the scripts, the command and the types, and works away from the source; the sdist brings all."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs the source tree")


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist. Built without isolation, so that no network is needed."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="module")
def venv(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh venv with the wheel; what the wheel depends on comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "-q", "--no-deps", "--no-index", next(built.glob("*.whl")), cwd=folder)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_the_wheel_holds_scripts_types_and_licence_and_nothing_else(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    lua = {str(p.relative_to(ROOT)) for p in (ROOT / "lua").rglob("*.lua")}
    assert lua <= {name.removeprefix("redsched/") for name in names}
    assert "redsched/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"redsched"}
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_sdist_holds_what_a_packager_needs(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "lua/README.md",
        "lua/shard/advance.lua",
        "tests/test_packaging.py",
        "tests/conftest.py",
        "examples/orders/orders.yaml",
        "examples/orders/data/orders.csv",
        "docs/architecture.md",
        "docs/guarantees.md",
        "CHANGELOG.md",
        "LICENSE",
        "README.md",
        "pyproject.toml",
    ):
        assert needed in names, f"{needed} is not in the sdist"


def test_the_command_works_away_from_the_source(venv: Path, tmp_path: Path) -> None:
    version = run(venv / "bin/redsched", "--version", cwd=tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version == f"redsched {project['version']}\n"
    inside = "import redsched.store.scripts as s; print(s.__file__); print(s.lua_root())"
    for place in run(venv / "bin/python", "-c", inside, cwd=tmp_path).split():
        assert Path(place).is_relative_to(venv), f"{place} is not the wheel's"


def test_the_scripts_of_the_wheel_run(venv: Path, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "hello.yaml").write_text("dag: hello\ntasks: {say: {run: echo hello}}\n")
    redsched = (venv / "bin/redsched", "--redis", redis_url, "--namespace", "wheel")
    registered = json.loads(run(*redsched, "dag", "register", "hello.yaml", "--json", cwd=tmp_path))
    assert [(row["dag"], row["version"], row["changed"]) for row in registered] == [("hello", 1, True)]
    assert [row["dag"] for row in json.loads(run(*redsched, "dag", "list", "--json", cwd=tmp_path))] == [
        "hello"
    ]
