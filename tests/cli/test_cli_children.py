"""The parts of `up` without Redis: children that die, a parent that dies, files that change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redsched
from redsched.cli import children, watch
from redsched.cli.up import default_paths, locked
from redsched.errors import Conflict

ROOT = Path(redsched.__file__).parents[1]


class Said(list[tuple[str, str]]):
    def __call__(self, who: str, text: str) -> None:
        self.append((who, text))

    def has(self, words: str) -> bool:
        return any(words in text for _, text in self)


def until(condition: Callable[[], Any], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def python(code: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Said], children.Child]:
    monkeypatch.setattr(children, "program", lambda *words: [sys.executable, "-c", code, *words])
    return lambda said: children.Child("worker", [], dict(os.environ), said)


# ---- children


def test_a_child_that_dies_starts_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(children, "LONGEST_PAUSE_S", 0.1)
    said = Said()
    child = python("import sys; print('hello', file=sys.stderr); sys.exit(3)", monkeypatch)(said)
    end = time.monotonic() + 15
    while len([t for _, t in said if "WARNING" in t]) < 3 and time.monotonic() < end:
        child.look()
        time.sleep(0.01)
    assert [t for _, t in said if "WARNING" in t][:3] == [
        f"WARNING ended with exit code 3; starting again in {pause} s" for pause in ("0.05", "0.1", "0.1")
    ]
    assert ("worker", "hello") in said


def test_a_child_that_was_told_to_stop_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said()
    child = python("import time; time.sleep(60)", monkeypatch)(said)
    child.look()
    assert child.alive
    children.stop_all([child], 10, lambda: False)
    child.look()
    assert not child.alive and said == []


def test_one_that_does_not_listen_is_killed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    said = Said()
    child = python(code, monkeypatch)(said)
    child.start()
    until(lambda: said.has("deaf"))
    children.stop_all([child], 0.3, lambda: True)
    assert child.process is not None and child.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "polled"])
def test_a_child_ends_when_its_parent_is_killed(kernel: bool, tmp_path: Path) -> None:
    if kernel and not sys.platform.startswith("linux"):
        pytest.skip("only Linux sends a signal when a parent dies")
    follow = "" if kernel else "parent._ask_kernel = lambda: False\n"
    child = (
        f"import os, time\nfrom redsched.cli import parent\n{follow}assert parent.follow_parent()\n"
        "assert 'REDSCHED_PARENT_PID' not in os.environ\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    middle = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env={{**os.environ, 'REDSCHED_PARENT_PID': str(os.getpid())}})\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", middle],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        pid = int(lines.readline())
    process.kill()
    process.wait()
    until(lambda: not _runs(pid), 10)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux sends a signal when a parent dies"
)
def test_a_child_hears_once_that_a_parent_with_threads_was_killed(tmp_path: Path) -> None:
    """The kernel says it once for each thread; to a worker a second SIGTERM means that its bodies are to be stopped."""
    child = (
        "import os, signal, time\nfrom redsched.cli import parent\nheard = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: heard.append(1))\nparent.follow_parent()\nprint(os.getpid(), flush=True)\n"
        "while not heard: time.sleep(0.001)\n"
        "end = time.monotonic() + 0.3\nwhile time.monotonic() < end: time.sleep(0.001)\n"
        f"open({str(tmp_path / 'heard')!r}, 'w').write(str(len(heard)))\n"
    )
    middle = (
        "import os, subprocess, sys, threading, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env={{**os.environ, 'REDSCHED_PARENT_PID': str(os.getpid())}})\n"
        "for _ in range(20): threading.Thread(target=time.sleep, args=(60,)).start()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", middle],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        pid = int(lines.readline())
    process.kill()
    process.wait()
    until(lambda: not _runs(pid), 10)
    assert (tmp_path / "heard").read_text() == "1"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # a zombie that nobody collects has ended too
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_up_on_a_data_folder(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "data"),
        pytest.raises(Conflict, match=f"process {os.getpid()}"),
        locked(tmp_path / "data"),
    ):
        pass
    with locked(tmp_path / "data"):
        pass


# ---- files


def test_a_changed_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("one")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "b.yaml").write_text("hidden")
    (tmp_path / "c.txt").write_text("no DAG file")
    seen = watch.look([tmp_path])
    assert [Path(name).name for name in seen] == ["a.yaml"]
    (tmp_path / "a.yaml").write_text("longer")
    (tmp_path / "d.py").write_text("")
    assert {Path(n).name for n in watch.differing(seen, watch.look([tmp_path]))} == {"a.yaml", "d.py"}


def answers(monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
    """What the process that registers prints, one time after the other."""
    texts = iter([one if isinstance(one, str) else json.dumps(one) for one in found])
    monkeypatch.setattr(
        watch.Registrar, "_ask", lambda _self: (next(texts), "Traceback\nError: Redis is away\n")
    )


def row(dag: str, version: int = 1, changed: bool = True, path: str = "a.yaml") -> dict[str, Any]:
    return {"dag": dag, "version": version, "changed": changed, "path": path}


def test_news_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"path": "b.yaml", "error": "b.yaml:3: unknown key"}
    answers(
        monkeypatch,
        [row("a"), row("b", path="b.yaml")],
        [row("a", changed=False), wrong],
        [row("a", 2), wrong],
        [row("a", 2, changed=False), row("b", changed=False, path="b.yaml")],
        [row("b", changed=False, path="b.yaml")],
    )
    said = Said()
    registrar = watch.Registrar([Path()], {}, said)
    assert all(registrar.register() for _ in range(5))
    assert said == [
        ("a", "v1 registered (a.yaml)"),
        ("b", "v1 registered (b.yaml)"),
        ("files", "ERROR b.yaml:3: unknown key"),
        ("a", "v2 registered (a.yaml)"),
        ("a", "is not in the files any more; it stays registered: redsched dag delete a"),
    ]


def test_a_registration_that_fails_says_why_and_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "", "")
    said = Said()
    registrar = watch.Registrar([Path()], {}, said)
    assert not registrar.register() and not registrar.register()
    assert said == [("files", "ERROR Redis is away")]


def test_a_file_that_hangs_does_not_hold_up_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "program", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    began, said = time.monotonic(), Said()
    assert not watch.Registrar([Path()], dict(os.environ), said, lambda: True).register()
    assert time.monotonic() - began < 10 and said == []
    monkeypatch.setattr(watch, "REGISTER_TIMEOUT_S", 0.3)
    assert not watch.Registrar([Path()], dict(os.environ), said).register()
    assert said.has("took more than 0.3 s")


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.yaml", "# mine\ndag: a\ntasks: {}\n", True),
        ("a.json", '{"dag": "a"}', True),
        ("a.py", "from redsched import dag\n", True),
        ("docker-compose.yml", "services: {}\n", False),
        ("script.py", "import os\n", False),
        ("notes.txt", "dag: a\n", False),
    ],
)
def test_without_paths_this_folder_is_taken_if_it_holds_dags(
    name: str, text: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    assert default_paths() == ([Path(".")] if found else [])
    (tmp_path / "dags").mkdir()
    assert default_paths() == [Path("dags")]
