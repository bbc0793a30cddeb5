"""Commands of redsched, each a process of its own, forked from one that has read the modules only: a hundred cost little."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, NamedTuple, Self

from tests.processes import Site

FORKER = """
import json, os, sys, tempfile
import croniter, networkx, redis, rich.table, yaml, zoneinfo
import redsched.backfill, redsched.client, redsched.editing, redsched.schedule, redsched.timing
import redsched.cli.backfill, redsched.cli.dag, redsched.cli.edit, redsched.cli.files, redsched.cli.next, redsched.cli.run
import redsched.definition.config, redsched.definition.model, redsched.definition.plan, redsched.definition.values
import redsched.store.connect, redsched.store.control, redsched.store.pool, redsched.store.shard
from redsched.cli.main import main

def child(words, out, err):
    for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out.fileno()), (2, err.fileno())):
        os.dup2(file, number)
    sys.argv = ["redsched", *words]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

def fork(words):
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    if pid := os.fork():
        return pid, out, err
    try:
        child(words, out, err)
    finally:
        os._exit(71)

def text(file):
    file.seek(0)
    return file.read().decode()

for line in sys.stdin:
    begun = [fork(words) for words in json.loads(line)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid, _, _ in begun]
    print(json.dumps([[c, text(o), text(e)] for c, (_, o, e) in zip(codes, begun)]), flush=True)
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Commands:
    """`with Commands(site) as run: run("dag", "list")`."""

    def __init__(self, site: Site) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKER],
            cwd=site.folder,
            env=site.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=20)

    def at_once(self, calls: list[list[str]]) -> list[Done]:
        """All at the same time; the answers in the order of the calls. No traceback in any."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(calls) + "\n")
        self.process.stdin.flush()
        answers = [Done(*answer) for answer in json.loads(self.process.stdout.readline())]
        assert not any("Traceback" in done.err for done in answers), answers
        return answers

    def __call__(self, *words: str, code: int = 0) -> Done:
        (done,) = self.at_once([list(words)])
        assert done.code == code, (words, done)
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).out)
