"""What goes wrong is one calm line on stderr, and an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import redsched
from redsched.errors import Conflict, DefinitionError, NotFound, RedschedError, Unavailable

from .fake_client import Call, FakeClient

ROOT = Path(redsched.__file__).parents[1]
DEAD = "redis://127.0.0.1:1/0"


def program(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_")}
    return subprocess.run(
        [sys.executable, "-m", "redsched", *args],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RedschedError("a"), 1),
        (DefinitionError("a"), 2),
        (NotFound("a"), 3),
        (Conflict("a"), 4),
        (Unavailable("a"), 5),
    ],
    ids=lambda x: str(x) if isinstance(x, int) else type(x).__name__,
)
def test_each_error_has_its_exit_code(
    error: RedschedError, code: int, call: Call, fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(fake, "dags", fail)
    result = call("dag", "list", "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "Error: a\n")


def test_a_bug_is_one_line_and_says_how_to_see_more(
    call: Call, fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "dags", lambda: 1 / 0)
    result = call("dag", "list")
    assert result.exit_code == 70 and len(result.stderr.splitlines()) == 1
    assert "ZeroDivisionError" in result.stderr and "REDSCHED_DEBUG=1" in result.stderr
    monkeypatch.setenv("REDSCHED_DEBUG", "1")
    assert "Traceback" in call("dag", "list").stderr


def test_control_characters_do_not_reach_the_terminal(
    call: Call, fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_dag: str) -> None:
        raise NotFound("DAG '\x1b[31mred\x07' does not exist")

    monkeypatch.setattr(fake, "dag", fail)
    assert "\x1b" not in call("dag", "show", "x").stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["rnu"], "did you mean 'run'"),
        (["run", "lits"], "did you mean 'list'"),
        (["run", "list", "--jsn"], "--json"),
        (["run", "show", "orders"], "Missing argument"),
        (["run", "show", "", "latest"], "empty"),
        (["pool", "set", "db", "--slots", "many"], "--slots"),
        (["run", "list", "--limit", "0"], "--limit"),
        (["completion", "tcsh"], "bash"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_words_are_exit_2(args: list[str], said: str, call: Call, fake: FakeClient) -> None:
    result = call(*args)
    assert result.exit_code == 2 and said in result.stderr and result.stdout == ""


@pytest.mark.parametrize("name", ["a\nb", "\udcff", "\u200b", "\x1b[31m"], ids=repr)
def test_ids_that_can_not_be_are_refused(name: str, call: Call, fake: FakeClient) -> None:
    for args in (
        ["dag", "show", name],
        ["run", "start", name],
        ["run", "show", "orders", name],
        ["pool", "show", name],
    ):
        result = call(*args)
        assert result.exit_code == 2 and "can't be" in result.stderr and "\x1b" not in result.stderr


@pytest.mark.parametrize(
    "name", ["prüfung", "日次", "a b", "a/b", "..", "../../etc", "a*b", "a%2Fb", "CON", "é"]
)
def test_odd_ids_are_not_found(name: str, call: Call, fake: FakeClient) -> None:
    for args in (["dag", "show", name], ["run", "start", name]):
        assert call(*args).exit_code == 3
    assert call("dag", "show", "-rf").exit_code == 2
    assert call("dag", "show", "--", "-rf").exit_code == 3


@pytest.mark.parametrize(
    "args",
    [["dag", "list"], ["run", "list"], ["status"], ["run", "start", "x"], ["pool", "list"], ["workers"]],
    ids=" ".join,
)
def test_redis_down_is_exit_5_and_no_half_document(args: list[str], tmp_path: Path) -> None:
    began = time.monotonic()
    result = program(*args, "--json", cwd=tmp_path, REDSCHED_REDIS_URL=DEAD)
    assert (result.returncode, result.stdout) == (5, "")
    assert len(result.stderr.splitlines()) == 1 and "127.0.0.1:1" in result.stderr
    assert time.monotonic() - began < 20


def test_without_any_redis_the_three_ways_are_named(tmp_path: Path) -> None:
    result = program("dag", "list", "--json", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (5, "")
    assert all(word in result.stderr for word in ("redsched up", "--redis", "REDSCHED_REDIS_URL"))


def test_a_wrong_setting_names_its_place_and_hides_the_password(tmp_path: Path) -> None:
    for args, env in (
        (["--redis", "redis://u:p@ss:w/rd#1@h/0"], {}),
        ([], {"REDSCHED_REDIS_URL": "redis://u:p@ss:w/rd#1@h/0"}),
    ):
        result = program("dag", "list", *args, cwd=tmp_path, **env)
        assert result.returncode == 2 and "percent-encoded" in result.stderr and "ss:w" not in result.stderr
    assert program("dag", "list", "--namespace", "a b", cwd=tmp_path).returncode == 2


def test_what_stands_nearer_to_the_command_wins(tmp_path: Path) -> None:
    result = program("--redis", "nonsense", "dag", "list", "--redis", DEAD, cwd=tmp_path)
    assert result.returncode == 5


def test_a_reader_that_leaves_gets_no_traceback(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom redsched.cli.main import cli\nfrom redsched.cli.base import State\n"
        "class Client:\n    def runs(self, **_):\n"
        "        row = dict(dag='d', state='success', kind='manual', logical_date=None, started_at=None, ended_at=None)\n"
        "        return [dict(row, run=f'r{i}') for i in range(20000)]\n"
        "State.client = lambda self: Client()\ncli.main(prog_name='redsched')\n"
    )
    (tmp_path / "p.py").write_text(script)
    for args in ("run list", "run list --json"):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {sys.executable} p.py {args} | head -1"],
            cwd=tmp_path,
            # Because an unbuffered stdout of Python does not notice that only a part was taken.
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 141 and done.stderr == "" and len(done.stdout.splitlines()) == 1


def test_ctrl_c_is_130_without_a_traceback(tmp_path: Path) -> None:
    script = (
        "import time\nfrom redsched.cli.main import cli\nfrom redsched.cli.base import State\n"
        "class Client:\n    def dags(self):\n        print('here', flush=True)\n        time.sleep(30)\n"
        "State.client = lambda self: Client()\ncli.main(prog_name='redsched')\n"
    )
    (tmp_path / "p.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, "p.py", "dag", "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and errors.strip() == ""


def test_an_ascii_terminal_gets_ascii(tmp_path: Path) -> None:
    result = program("--help", cwd=tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert result.returncode == 0 and "redsched" in result.stdout


def test_help_does_not_wait_for_the_heavy_modules(tmp_path: Path) -> None:
    heavy = "{'pydantic', 'redis', 'rich', 'networkx', 'yaml', 'croniter', 'redsched.client'}"
    code = f"""if 1:
        import sys
        from redsched.cli.main import cli
        for words in ([], ["dag"], ["run"], ["pool"], ["up"], ["worker"]):
            cli.main([*words, "--help"], prog_name="redsched", standalone_mode=False)
        print(sorted({heavy} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, call: Call) -> None:
    result = call("completion", shell)
    assert result.exit_code == 0 and "_REDSCHED_COMPLETE" in result.stdout


def test_version_and_help(call: Call) -> None:
    assert call("--version").stdout.startswith("redsched ")
    assert "Exit codes" in call("-h").stdout
