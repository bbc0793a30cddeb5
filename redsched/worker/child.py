"""A child of the worker: one thread, one straight road. Read hints, start them, run the bodies, report, release, again.

    read ──> start ──> [ begin ─> body ─> over ] … ──> report ──> release ──> read …
              │ N: not wanted                          (each said again until Redis answers)

It tells its supervisor what it holds before it holds it, so whatever kills it, nothing is lost or kept by mistake.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import random
import signal
import sys
import time
import traceback
from _signal import getsignal  # type: ignore[import-not-found]  # signal.getsignal makes enums: 5 µs a call
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NoReturn

from redsched.definition.values import duration_text
from redsched.errors import NotFound, RedschedError, Unavailable
from redsched.store import Store
from redsched.store.pool import Hint
from redsched.store.shard import Report
from redsched.worker import bodies, wire
from redsched.worker.bodies import Gate, Outcome, Stopped
from redsched.worker.jobs import Job, Jobs
from redsched.worker.logs import LogFile

SHORT_S: Final = 0.005  # bodies shorter than this are read in batches
MAX_BATCH: Final = 64
BATCH_S: Final = 0.020  # a batch should last no longer than this, and no report wait longer
BLOCK_MS: Final = 5000
PAUSES: Final = (0.05, 2.0)  # while Redis is away: from, to
SMALL_RESULT: Final = 8192  # bigger ones are reported at once instead of going through the pipe
PR_SET_PDEATHSIG: Final = 1
TERM: Final = int(signal.SIGTERM)
USR1: Final = int(signal.SIGUSR1)


class Woken(BaseException):
    """Raised by SIGUSR1 inside the blocking read, and only there."""


@dataclass(frozen=True)
class Setup:
    """What a child inherits from its supervisor."""

    worker: str
    slot: int
    pools: tuple[str, ...]
    paths: tuple[str, ...]  # go first on the import path
    folder: Path
    log_name: str
    board: wire.Board
    lines: int  # write end of the pipe to the supervisor
    news: int  # write end of the guardian's pipe, -1 for none
    supervisor: int
    half: int
    result_limit: int
    open_store: Callable[[], Store]

    @property
    def consumer(self) -> str:
        return f"{self.worker}.{self.slot}"


@dataclass
class Batch:
    """Hints granted under one nonce; what is over waits here for its report."""

    nonce: str
    hints: list[Hint]
    finished: list[tuple[Hint, Report]] = field(default_factory=list)
    unwanted: list[Hint] = field(default_factory=list)  # granted once, not to be run: only released
    first_over: float = 0.0


class Child:
    """The mini worker of one slot."""

    def __init__(self, setup: Setup, store: Store) -> None:
        self.setup = setup
        self.store = store
        self.board = setup.board
        self.cells = setup.board.cells
        self.jobs = Jobs(store.shard, self.say)
        self.output = self._log_file(setup.log_name)  # of Python bodies: our own stdout and stderr
        self.log = self.output  # of the body that is on
        self.gate = Gate()
        self.serial = 0
        self.reading = False
        self.leaving = False  # after a stopped Python body: what it left in our process group goes with us
        self.lost = False
        self.pace = 1.0  # seconds a body takes, lately
        self.count = 1
        self.functions: dict[str, Callable[..., Any]] = {}
        self.block_ms = min(BLOCK_MS, store.clients.block_ms)  # always shorter than the socket's time-out
        self.unsaid = ""
        self._pid = os.getpid()
        self.home = os.open(".", os.O_RDONLY | os.O_CLOEXEC)

    # ---------------------------------------------------------------- the road

    def run(self) -> None:
        """Until told to drain. What was delivered to this consumer earlier comes first."""
        self._await_number()
        history, tries = True, 0
        while not self.draining:
            try:
                hints = self._read(history)
            except Unavailable as error:
                self._lose(error)
                self._pause(tries)
                # Because the reply that was lost may have brought hints, our own history comes first again.
                history, tries = True, tries + 1
                continue
            history, tries = False, 0
            self.recovered()
            if hints:
                self._batch(hints)
        self._leave()

    def _read(self, history: bool) -> list[Hint]:
        if history:
            return self.store.pool.read(self.setup.consumer, self.setup.pools, MAX_BATCH, 0, history=True)
        try:
            self.reading = True
            if self.draining:  # because the signal may have come before `reading` was set
                return []
            return self.store.pool.read(self.setup.consumer, self.setup.pools, self.count, self.block_ms)
        except Woken:
            return []
        finally:
            self.reading = False

    def _batch(self, hints: list[Hint]) -> None:
        batch = Batch(os.urandom(8).hex(), hints)
        self.tell(wire.held(batch.nonce, hints))
        answers = self.say(self.store.pool.start, self.setup.worker, batch.nonce, hints)
        self.tell("G\t" + "".join("01"[a] for a in answers) + "\n")
        todo = [(i, h) for i, (h, granted) in enumerate(zip(hints, answers, strict=True)) if granted]
        self.cells[wire.RECHECK] = 0
        while todo:
            if self.draining:
                self._give_back(batch, [h for _, h in todo])
                break
            if self.cells[wire.RECHECK]:
                todo = self._recheck(batch, todo)
                continue
            index, hint = todo.pop(0)
            if self._one(batch, index, hint):
                todo = []
        self._flush(batch)
        self.tell("R\n")
        self._adapt(len(hints))

    def _recheck(self, batch: Batch, todo: list[tuple[int, Hint]]) -> list[tuple[int, Hint]]:
        """Some grants may be gone (cancelled, or the lease ran out): the same nonce tells which still stand."""
        self.cells[wire.RECHECK] = 0
        rest = [h for _, h in todo]
        answers = self.say(self.store.pool.start, self.setup.worker, batch.nonce, rest)
        batch.unwanted += [h for h, granted in zip(rest, answers, strict=True) if not granted]
        return [item for item, granted in zip(todo, answers, strict=True) if granted]

    def _one(self, batch: Batch, index: int, hint: Hint) -> bool:
        """Run one attempt. True: the supervisor has taken the rest of the batch meanwhile."""
        try:
            job = self.jobs.job(hint)
        except NotFound as error:
            self._over(batch, index, hint, bodies.failed(f"not found: {error}", final=True), 0, None)
            return False
        except (RedschedError, KeyError, ValueError, TypeError) as error:
            self._over(
                batch, index, hint, bodies.failed(f"can't read the task: {bodies.describe(error)}"), 0, None
            )
            return False
        begun = time.monotonic()
        outcome, verdict, taken = self._body(job, index, begun)
        lasted = time.monotonic() - begun
        self.pace += 0.3 * (lasted - self.pace)
        if taken:
            batch.finished = []  # the supervisor reports them
        if verdict == "unwanted":
            batch.unwanted.append(hint)
        elif verdict == "stopped":
            self._give_back(batch, [hint])
        else:
            self._over(batch, index, hint, outcome, lasted, job)
            if time.monotonic() - batch.first_over > BATCH_S:
                self._flush(batch)
        if lasted > wire.LONG_S and not taken:
            self.cells[wire.RECHECK] = 1
        return taken

    def _over(
        self, batch: Batch, index: int, hint: Hint, outcome: Outcome, lasted: float, job: Job | None
    ) -> None:
        skip = bodies.skips(job, outcome) if job else ()
        report = Report(
            hint.attempt_id,
            outcome.outcome,
            int(lasted * 1000),
            outcome.reason,
            outcome.result,
            outcome.final,
            outcome.retry_ms,
            skip,
        )
        batch.finished.append((hint, report))
        if len(batch.finished) == 1:
            batch.first_over = time.monotonic()
        if outcome.result is not None and len(outcome.result) > SMALL_RESULT:
            self._flush(batch)
        else:
            self.unsaid += wire.over(
                index, report
            )  # goes with the next line: half the writes of a short body

    def _flush(self, batch: Batch) -> None:
        """Report, then release: a crash between the two is harmless in this order only."""
        done, batch.finished = batch.finished, []
        gone, batch.unwanted = batch.unwanted, []
        if not done and not gone:
            return
        if done:
            self._report([report for _, report in done])
        self.say(self.store.pool.release, batch.nonce, [hint for hint, _ in done] + gone)
        self.tell("F\n")

    def _report(self, reports: list[Report]) -> None:
        """If Redis refuses them (not: is away), one by one, and the refused one as a failure."""
        try:
            self.say(self.store.shard.report, self.worker_no, reports)
        except RedschedError as error:
            if len(reports) > 1:
                for report in reports:
                    self._report([report])
                return
            reason = bodies.clean(f"the report was refused: {error}")
            self.tell(f"X\t{reports[0].attempt_id}: {reason}\n")
            with contextlib.suppress(RedschedError):
                plain = Report(reports[0].attempt_id, "failed", reports[0].ms, reason, final=True)
                self.say(self.store.shard.report, self.worker_no, [plain])

    def _give_back(self, batch: Batch, hints: list[Hint]) -> None:
        self.say(self.store.pool.give_back, self.setup.worker, batch.nonce, hints)

    def _adapt(self, got: int) -> None:
        """Batches grow by what is there, and only where bodies are so short that nobody waits for another's."""
        if self.pace >= SHORT_S:
            self.count = 1
        else:
            grown = self.count * 2 if got >= self.count else self.count
            self.count = max(1, min(MAX_BATCH, grown, int(BATCH_S / max(self.pace, 1e-6))))

    def _leave(self) -> None:
        """Nothing stays behind under our name: hints that came while we were told to go are put back."""
        with contextlib.suppress(Unavailable):
            while rest := self.store.pool.read(
                self.setup.consumer, self.setup.pools, MAX_BATCH, 0, history=True
            ):
                self.store.pool.give_back(self.setup.worker, os.urandom(8).hex(), rest)
            self.store.pool.leave(self.setup.consumer, self.setup.pools)

    @property
    def draining(self) -> bool:
        return self.leaving or bool(self.cells[wire.DRAIN])

    # ---------------------------------------------------------------- one body

    def _body(self, job: Job, index: int, begun: float) -> tuple[Outcome, wire.Verdict, bool]:
        """(how it ended, why it was stopped, whether the supervisor took the rest of the batch)."""
        task = job.task
        self.serial += 1
        kind = "p" if task.run is None else "c"
        self._open_log(kind)
        self.cells[wire.CUT] = 0
        self.cells[wire.BODY] = self.serial
        times = f"{begun * 1000:.0f}\t{task.timeout_ms}\t{task.grace_ms}"
        self.tell(f"B\t{index}\t{self.serial}\t{times}\t{kind}\t{self.log.path.name}\t{task.name}\n")
        outcome, taken = self._call(job, begun) if kind == "p" else self._command(job)
        verdict = self.board.verdict(self.serial)
        if verdict == "timeout":
            outcome = bodies.failed(timed_out(task.timeout_ms))
        elif outcome is None:
            outcome = bodies.failed(bodies.killed(signal.SIGTERM))
        if verdict and kind == "p":
            self.leaving = True
        self._finish_log(job, outcome, verdict)
        return outcome, verdict, taken

    def _call(self, job: Job, begun: float) -> tuple[Outcome | None, bool]:
        outcome: Outcome | None = None
        try:
            with bodies.entered(job, self.store, self.say):
                outcome = bodies.call(job, self.functions, self.gate, self._note, self.setup.result_limit)
        except Stopped:
            pass
        if os.getpid() != self._pid:
            os._exit(0)  # a body forked and its copy came back: it is no worker
        self._restore()
        self.cells[wire.BODY] = 0
        # Read the clock after the cell: then either we see that the body was long, or the supervisor that it is over.
        if time.monotonic() - begun < wire.LONG_S:
            return outcome, False
        with self.board.locked():
            return outcome, self.cells[wire.TAKEN] == self.serial

    def _command(self, job: Job) -> tuple[Outcome, bool]:
        process = bodies.spawn(job, self.log, self.setup.folder, self.setup.slot)
        if isinstance(process, Outcome):
            with self.board.locked():
                self.cells[wire.BODY] = 0
                return process, self.cells[wire.TAKEN] == self.serial
        self._news(f"+{process.pid}\n")
        self.tell(f"P\t{self.serial}\t{process.pid}\n")
        # Not reaped before the group is killed: until then its number can't become anybody else's.
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        with self.board.locked():
            self.cells[wire.BODY] = 0
            taken = self.cells[wire.TAKEN] == self.serial
            kill_group(process.pid)
            code = process.wait()
        self._news(f"-{process.pid}\n")
        setup = self.setup
        return bodies.command_outcome(
            job, code, self.log, setup.folder, setup.slot, setup.result_limit
        ), taken

    # ---------------------------------------------------------------- output

    def take_output(self) -> None:
        """From here on, what this process prints is the log of whatever Python body is on."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._inode = os.fstat(self.output.fd).st_ino
        self.out, self.err = self._stream(1), self._stream(2)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the life of the process
        sys.stdout, sys.stderr = self.out, self.err
        handler = logging.StreamHandler(self.err)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
        self._handler = handler

    def _stream(self, fd: int) -> IO[str]:
        os.dup2(self.output.fd, fd)
        return open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)

    def _restore(self) -> None:
        """Undo what a body may have done to its process and that would hurt the next one."""
        if not self._flushed(1, self.out):
            self.out = self._stream(1)
        if not self._flushed(2, self.err):
            self.err = self._stream(2)
            self._handler.stream = self.err
        sys.stdout, sys.stderr = self.out, self.err
        with contextlib.suppress(OSError):
            os.fchdir(self.home)
        if getsignal(TERM) != self._on_term or getsignal(USR1) != self._on_wake:
            self.take_signals()

    def _flushed(self, fd: int, stream: IO[str]) -> bool:
        """False if a body has closed the stream, or has put something else under its number."""
        try:
            stream.flush()
            return os.fstat(fd).st_ino == self._inode
        except (OSError, ValueError):
            return False

    def _note(self, text: str) -> None:
        """Into the log of the Python body that is on, after what it has printed."""
        with contextlib.suppress(OSError, ValueError):
            self.out.flush()
            self.err.flush()
        self.output.note(text)

    def _log_file(self, name: str) -> LogFile:
        return LogFile(self.setup.folder / name, self.setup.half, self.setup.result_limit, create=True)

    def _open_log(self, kind: str) -> None:
        """A command gets a file of its own, because what it leaves behind may go on printing; a Python body ours, emptied."""
        if kind == "c":
            self.log = self._log_file(f"{self.setup.log_name}.{self.serial}")
        else:
            self.output.restart()

    def _close_log(self) -> None:
        if self.log is self.output:
            self.output.restart()
            return
        self.log.path.unlink(missing_ok=True)
        self.log.close()
        self.log = self.output

    def _finish_log(self, job: Job, outcome: Outcome, verdict: wire.Verdict) -> None:
        """Store the rest of the log before the report. The supervisor has let go of it: the body is not on any more."""
        if verdict == "unwanted":
            self.log.note("redsched: stopped, because this attempt is not wanted any more")
        elif verdict == "stopped":
            self.log.note("redsched: stopped with its worker; given back, to be run again")
        elif outcome.outcome == "failed":
            self.log.note(f"redsched: {outcome.reason}")
        self.log.cut = self.cells[wire.CUT]
        if size := self.log.size():
            for offset, data in self.log.pieces(self.board.shipped(self.serial), size):
                with contextlib.suppress(NotFound):
                    self.say(self.store.shard.log_write, job.attempt_id, offset, data)
        if size or self.log is not self.output:
            self._close_log()

    # ---------------------------------------------------------------- Redis, the supervisor, signals

    def say(self, method: Callable[..., Any], *args: Any) -> Any:
        """Say a store call until Redis has answered: every call may be said twice. NotFound goes to the caller."""
        tries = 0
        if self.unsaid:
            self.tell("")
        while True:
            try:
                answer = method(*args)
            except Unavailable as error:
                self._lose(error)
                self._pause(tries)
                tries += 1
            else:
                if self.lost:
                    self.recovered()
                return answer

    def _lose(self, error: Exception) -> None:
        if not self.lost:
            self.lost = True
            self.tell(f"L\t{bodies.clean(str(error))}\n")

    def recovered(self) -> None:
        if self.lost:
            self.lost = False
            self.tell("K\n")

    @staticmethod
    def _pause(tries: int) -> None:
        low, high = PAUSES
        time.sleep(min(high, low * 2 ** min(tries, 10)) * random.uniform(0.5, 1))

    def tell(self, line: str) -> None:
        """A line to the supervisor. If there is none any more, this process has no business either."""
        data = (self.unsaid + line).encode(errors="backslashreplace")
        self.unsaid = ""
        try:
            while data:
                data = data[os.write(self.setup.lines, data) :]
        except BrokenPipeError:
            os._exit(1)

    def _news(self, line: str) -> None:
        if self.setup.news >= 0:
            with contextlib.suppress(OSError):
                os.write(self.setup.news, line.encode())

    def _await_number(self) -> None:
        while not self.cells[wire.WORKER] and not self.draining:
            time.sleep(0.01)

    @property
    def worker_no(self) -> int:
        return self.cells[wire.WORKER] - 1

    def take_signals(self) -> None:
        """No signal is ignored here but by a handler, because commands would inherit SIG_IGN."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR1, self._on_wake)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _nothing)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        """Stop the Python body that the supervisor has judged; a SIGTERM to the whole service is the supervisor's affair."""
        if self.gate.open and self.board.verdict(self.serial):
            raise Stopped

    def _on_wake(self, number: int, frame: FrameType | None) -> None:
        if self.reading and self.draining:
            self.reading = False
            raise Woken


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def timed_out(timeout_ms: int) -> str:
    return f"timeout after {duration_text(timeout_ms)}"


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def die_with(supervisor: int) -> None:
    """Where the kernel can (Linux), be killed when the supervisor dies; elsewhere its pipe and the guardian do it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)


def main(setup: Setup) -> NoReturn:
    """The whole life of a child, from the fork on."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with(setup.supervisor)
        signal.set_wakeup_fd(-1)
        sys.path[:0] = setup.paths
        sys.path.append(os.getcwd())  # last, so that nothing there can hide a module of ours
        child = Child(setup, setup.open_store())
        child.take_signals()
        child.take_output()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        child.run()
        code = 0
    except BaseException as error:  # noqa: BLE001 - its last words go to the supervisor
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = bodies.clean(f"{bodies.describe(error)} ({last.filename}:{last.lineno})")
        with contextlib.suppress(OSError):
            os.write(setup.lines, f"X\ta child ended: {text}\n".encode())
    finally:
        os._exit(code)
