"""`redsched up` as people meet it: real processes, the embedded server, files that change, and kill -9."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redsched
from redsched import embedded
from redsched.errors import Unavailable

ROOT = Path(redsched.__file__).parents[1]
ORDERS = "dag: orders\nparams: {{word: hello}}\ntasks:\n  say: {{run: echo $REDSCHED_PARAM_WORD {version}}}\n"
PYTHON = """
from redsched import dag, task
from words import WORD

@task(pool={"name": "narrow", "slots": 1})
def say():
    print(WORD)
    return WORD

@dag
def flow():
    say()
"""


def has_server() -> bool:
    try:
        return bool(embedded.binary())
    except Unavailable:
        return False


pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
    pytest.mark.skipif(not has_server() and not os.environ.get("CI"), reason="no server to embed"),
]


def until(condition: Callable[[], Any], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Site:
    """A folder, and the commands that are given in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "dags").mkdir()
        clean = {k: v for k, v in os.environ.items() if not k.startswith("REDSCHED_")}
        self.env = {**clean, "PYTHONPATH": str(ROOT)}
        self.ups: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> str:
        return (self.folder / "up.log").read_text()

    def write(self, name: str, text: str) -> None:
        (self.folder / "dags" / name).write_text(text)

    def program(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "redsched", *args]

    def call(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.program(*args),
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == code, (args, done.stdout, done.stderr)
        return done

    def json(self, *args: str) -> Any:
        return json.loads(self.call(*args, "--json").stdout)

    def up(self, *args: str) -> subprocess.Popen[bytes]:
        with (self.folder / "up.log").open("wb") as log:
            process = subprocess.Popen(
                self.program("up", "--concurrency", "2", *args),
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=log,
            )
        self.ups.append(process)
        self.until("ready:")
        return process

    def until(self, words: str) -> None:
        until(lambda: words in self.log, f"not said: {words!r}")

    def pids(self) -> dict[int, str]:
        """Processes of this folder, without what was started to ask."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and (entry / "cwd").resolve().is_relative_to(self.folder):
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
        return found

    def children(self, kind: str) -> list[int]:
        return [pid for pid, line in self.pids().items() if f"redsched {kind} " in f"{line} "]

    def only_server(self) -> bool:
        return all("redsched" not in line or "server" in line for line in self.pids().values())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for process in made.ups:
        process.kill()
        process.wait()
    embedded.stop(tmp_path / ".redsched")
    until(lambda: not made.pids(), f"left behind: {made.pids()}")


def test_once_runs_a_dag_and_leaves_nothing_behind(site: Site) -> None:
    site.write("orders.yaml", ORDERS.format(version=1))
    answer = json.loads(site.call("up", "--once", "orders", "-p", "word=hey", "--json").stdout)
    assert answer["state"] == "success" and answer["params"] == {"word": "hey"}
    assert site.pids() == {}
    site.write("orders.yaml", "dag: orders\ntasks: {say: {run: exit 7}}\n")
    failed = site.call("up", "--once", "orders", code=1)
    assert "exit code 7" in failed.stdout and "v2 registered" in failed.stderr
    site.call("up", "--once", "ordres", code=3)
    assert site.pids() == {}


def test_a_changed_file_is_registered_and_run_with_its_new_code(site: Site) -> None:
    site.write("words.py", "WORD = 'one'\n")
    site.write("flow.py", PYTHON)
    site.up()
    assert site.json("run", "start", "flow", "--wait")["state"] == "success"
    assert site.call("run", "logs", "flow", "latest", "say").stdout == "one\n"

    site.write("words.py", "WORD = 'three'\n")
    site.until("SIGHUP")
    site.call("run", "start", "flow", "--wait")
    assert site.call("run", "logs", "flow", "latest", "say").stdout == "three\n"

    site.write("orders.yaml", ORDERS.format(version=1))
    site.until("orders      v1 registered (dags/orders.yaml)")
    site.write("orders.yaml", ORDERS.format(version=2) + "retires: 3\n")
    site.until("orders.yaml:5")
    assert site.json("dag", "show", "orders")["version"] == 1, "the old version stays"
    site.write("orders.yaml", ORDERS.format(version=22))
    site.until("orders      v2 registered")
    assert site.log.count("orders.yaml:5") == 1
    assert len(re.findall("run flow/\\S+ success in", site.log)) == 2


def test_a_second_up_is_refused_and_a_new_pool_is_served(site: Site) -> None:
    site.write("orders.yaml", ORDERS.format(version=1))
    process = site.up()
    refused = site.call("up", code=4)
    assert f"process {process.pid}" in refused.stderr and refused.stdout == ""

    site.call("pool", "set", "db", "--slots", "1")
    site.write("orders.yaml", "dag: orders\ntasks: {say: {run: 'true', pool: db}}\n")
    site.until("v2 registered")
    assert site.json("run", "start", "orders", "--wait", "--timeout", "30s")["state"] == "success"
    assert "serving the pools db, default" in site.log


def test_what_dies_is_started_again(site: Site) -> None:
    site.write("orders.yaml", ORDERS.format(version=1))
    site.up("--schedulers", "2")
    worker = site.children("worker")[0]
    os.kill(min(site.children("worker")), signal.SIGKILL)
    site.until("worker      was killed by SIGKILL; starting again in 0.5 s")
    os.kill(site.children("scheduler")[0], signal.SIGKILL)
    site.until(
        "was killed by SIGKILL; starting again",
    )
    server = next(pid for pid, line in site.pids().items() if "redis.sock" in line)
    os.kill(server, signal.SIGKILL)
    site.until("the embedded server has ended; starting it again")
    assert site.json("run", "start", "orders", "--wait", "--timeout", "60s")["state"] == "success"
    assert worker not in site.children("worker")


def test_kill_9_leaves_no_child_and_the_next_up_goes_on(site: Site) -> None:
    site.write("orders.yaml", ORDERS.format(version=1))
    process = site.up()
    before = site.json("run", "start", "orders", "--wait")["run"]
    process.kill()
    process.wait()
    until(site.only_server, f"children live on: {site.pids()}", 15)
    assert site.json("run", "show", "orders", "latest")["run"] == before, "the server is still there"

    process = site.up()
    assert "v1 unchanged" in site.log
    assert site.json("run", "start", "orders", "--wait")["state"] == "success"
    process.terminate()
    assert process.wait(30) == 0
    assert site.pids() == {}
    site.call("dag", "list", code=5)


def test_sigterm_lets_a_task_end(site: Site) -> None:
    site.write("slow.yaml", "dag: slow\ntasks: {nap: {run: sleep 2}}\n")
    process = site.up()
    run = site.json("run", "start", "slow")["run"]
    until(lambda: site.json("run", "show", "slow", run)["tasks"]["nap"]["state"] == "running", "not running")
    process.terminate()
    assert process.wait(30) == 0
    site.up()
    shown = site.json("run", "show", "slow", run)
    assert (shown["state"], shown["tasks"]["nap"]["attempt"]) == ("success", 1)


def test_a_shell_completes_what_is_registered(site: Site) -> None:
    site.write("orders.yaml", ORDERS.format(version=1))
    site.up()
    run = site.json("run", "start", "orders", "--wait")["run"]
    for words, found in (
        ("redsched run show ", "orders"),
        ("redsched run show orders ", run),
        ("redsched run logs orders latest ", "say"),
        ("redsched worker --pool ", "default"),
    ):
        env = {
            "_REDSCHED_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split())),
        }
        done = subprocess.run(
            site.program(),
            cwd=site.folder,
            env={**site.env, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"plain,{found}" in done.stdout.splitlines() and done.stderr == ""


def test_without_dag_files_it_says_what_to_do(site: Site) -> None:
    (site.folder / "dags").rmdir()
    site.up()
    site.until("no DAG files here")
    assert site.json("dag", "list") == []
    assert site.json("run", "list") == []
    assert site.json("status")["schedulers"] == 1
    assert [w["concurrency"] for w in site.json("workers")] == [2]
    assert all(s["owner"] for s in site.json("shards"))
