"""The worker: a supervisor that keeps leases, time-outs and logs, and children that run bodies.

                    ┌── hints, reports ──> Redis
    child 0..N ─────┤
                    └── lines, board ──> supervisor ── leases, running, logs ──> Redis
    guardian <── process groups ──────────┘   (kills what is left when the supervisor is killed)

One thread, one loop; nothing in it waits for a body. First SIGTERM: it drains, bodies may end within the grace. Second,
or the grace is over: it stops them and gives their attempts back, to be run again elsewhere. The heartbeat ends last.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from redsched.errors import NotFound, RedschedError, Unavailable
from redsched.settings import Settings
from redsched.store import Store
from redsched.store.pool import Hint
from redsched.store.shard import Report
from redsched.worker import bodies, child, guardian, wire
from redsched.worker.logs import LogFile
from redsched.worker.names import take_name
from redsched.worker.slots import Body, Slot

BEAT_MS: Final = 5000
NOTICE_MS: Final = 400  # a body that lasts longer is shown as running
TAIL_MS: Final = (250.0, 1000.0)  # how often a growing, and a silent log is looked at
FAST_TAIL_MS: Final = 20.0
FAST_BYTES: Final = 4_194_304
TICK_S: Final = (
    0.005  # lines are read at most this often, so that thousands of short bodies cost few wake-ups
)
STUCK_MS: Final = 2000  # a child that does not notice its body's end for this long is killed
LAST_WORDS_MS: Final = 5000  # for reports, once everything has ended
LOSS_MS: Final = 1000
BLIP_MS: Final = 60_000
PAUSE_MS: Final = (50.0, 2000.0)
LINES_A_SECOND: Final = 20


class Worker:
    """See the module. `run` returns the exit code."""

    def __init__(
        self,
        settings: Settings,
        *,
        pools: Sequence[str],
        concurrency: int,
        paths: Sequence[str],
        grace_s: float,
        name: str | None = None,
        open_store: Callable[[], Store] | None = None,
    ) -> None:
        self.settings = settings
        self.pools = tuple(dict.fromkeys(pools)) or ("default",)
        self.paths = tuple(paths)
        self.grace_ms = grace_s * 1000
        self.open_store = open_store or partial(Store.open, settings, "worker")
        self.half = settings.log_limit // 2
        self.name = take_name(name)
        self.folder = Path(tempfile.mkdtemp(prefix="redsched-"))  # 0700
        self.slots = [Slot(i, wire.Board(self.folder / f"lock-{i}")) for i in range(concurrency)]
        self.store: Store | None = None
        self.number: int | None = None
        self.state = "running"
        self.state_since = 0.0
        self.signals = {"stop": 0, "recycle": 0}
        self.outbox: deque[Callable[[Store], object]] = deque()
        self.away_until = 0.0
        self.pause = 0.0
        self.lost_at = self.next_blip = 0.0
        self.lost_why = ""
        self.next_beat = 0.0
        self.next_heartbeat = 0.0
        self._lines: deque[float] = deque()
        self._swallowed = 0
        self._life = self._news_read = self._news_write = self._wake_read = self._wake_write = -1

    # ---------------------------------------------------------------- life

    def run(self) -> int:
        self._take_signals()
        self._start_guardian()
        for slot in self.slots:
            self._fork(slot)
        names = ", ".join(self.pools)
        self.log(f"started: {len(self.slots)} children, pools: {names} (pid {os.getpid()})")
        try:
            while not self._ended():
                self._wait()
                self._step()
        finally:
            self._close()
        return 0

    def _step(self) -> None:
        self._hear()
        self._reap()
        self._obey()
        now = wire.monotonic_ms()
        for slot in self.slots:
            if slot.pid == 0 and self.state == "running" and now >= slot.fork_at:
                self._fork(slot)
            if slot.body:
                self._mind(slot, slot.body, now)
        if now >= self.away_until:
            self._keep(now)
        self._mourn(now)

    def _wait(self) -> None:
        """Until a line, a signal or the next thing that is due; at least a tick, because lines come in thousands."""
        time.sleep(TICK_S)
        due = self._due() - wire.monotonic_ms()
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for slot in self.slots:
            if slot.pid:
                poll.register(slot.pipe, select.POLLIN)
        if due > 0:
            poll.poll(due)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _due(self) -> float:
        now = wire.monotonic_ms()
        times = [now + 1000, self.next_beat]
        if any(slot.hints for slot in self.slots):
            times.append(self.next_heartbeat)
        if self.outbox:
            times.append(now)
        if self.number is not None:
            times += [s.body.begun + NOTICE_MS for s in self.slots if s.body and not s.body.noticed]
        times = [max(t, self.away_until) for t in times]
        for slot in self.slots:
            if slot.body:
                times += _deadlines(slot.body)
            elif not slot.pid and self.state == "running":
                times.append(slot.fork_at)
        if self.state == "draining":
            times.append(self.state_since + self.grace_ms)
        return min(times)

    def _ended(self) -> bool:
        if self.state == "running" or any(slot.pid for slot in self.slots):
            return False
        if self.outbox and wire.monotonic_ms() < self.state_since + LAST_WORDS_MS:
            return False
        if self.outbox:
            self.log(
                f"Redis did not come back: {len(self.outbox)} messages are lost, their attempts will run again"
            )
        return True

    def _close(self) -> None:
        for slot in self.slots:
            if slot.pid:
                child.kill_group(slot.pid)
                os.waitpid(slot.pid, 0)
            if slot.body and slot.body.pgid:
                child.kill_group(slot.body.pgid)
        if self.store:
            with contextlib.suppress(RedschedError):
                if wire.monotonic_ms() >= self.away_until:
                    self.store.control.worker_leave(self.name.text)
                    self._tell("worker_left", "")
            self.store.close()
        self._stop_guardian()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.name.close()
        self.log("ended")

    # ---------------------------------------------------------------- signals

    def _take_signals(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, partial(self._count, "stop"))
        signal.signal(signal.SIGHUP, partial(self._count, "recycle"))
        signal.signal(signal.SIGCHLD, partial(self._count, ""))

    def _count(self, what: str, number: int, frame: FrameType | None) -> None:
        if what:
            self.signals[what] += 1

    def _obey(self) -> None:
        now = wire.monotonic_ms()
        if self.signals["recycle"] and self.state == "running":
            self.signals["recycle"] = 0
            self.log("SIGHUP: new children after their bodies")
            for slot in self.slots:
                slot.recycling = True
                self._drain(slot)
        wanted = self.signals["stop"]
        if wanted >= 1 and self.state == "running":
            on = sum(1 for s in self.slots if s.body)
            self._become("draining", f"draining: {on} running, up to {self.grace_ms / 1000:g} s")
            for slot in self.slots:
                self._drain(slot)
        over = self.state == "draining" and now >= self.state_since + self.grace_ms
        if self.state == "draining" and (wanted >= 2 or over):
            self._become(
                "stopping", "stopping what still runs; it is given back" + (" (grace over)" if over else "")
            )
        if self.state == "stopping":
            self._stop_all(now, at_once=wanted >= 3)

    def _become(self, state: str, text: str) -> None:
        self.state, self.state_since = state, wire.monotonic_ms()
        self.log(text)

    def _stop_all(self, now: float, *, at_once: bool) -> None:
        longest = max((s.body.grace_ms for s in self.slots if s.body), default=0)
        late = now > self.state_since + longest + LAST_WORDS_MS
        for slot in self.slots:
            if slot.pid and (late or at_once):
                if slot.body and slot.body.pgid:
                    child.kill_group(slot.body.pgid)
                os.kill(slot.pid, signal.SIGKILL)
            elif slot.body:
                self._stop(slot, slot.body, "stopped", now)

    @staticmethod
    def _drain(slot: Slot) -> None:
        slot.board.cells[wire.DRAIN] = 1
        if slot.pid:
            os.kill(slot.pid, signal.SIGUSR1)

    # ---------------------------------------------------------------- children

    def _fork(self, slot: Slot) -> None:
        for i in range(wire.CELLS):
            if i != wire.WORKER:
                slot.board.cells[i] = 0
        slot.incarnation += 1
        reading, writing = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            self._become_child(slot, reading, writing, parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        os.close(writing)
        os.set_blocking(reading, False)
        slot.pid, slot.pipe, slot.born = pid, reading, wire.monotonic_ms()
        slot.ran_something, slot.recycling = False, False
        self._news(f"+{pid}\n")

    def _become_child(self, slot: Slot, reading: int, writing: int, parent: int) -> None:
        """In the child: let go of what is the supervisor's, and never come back."""
        others = [s.pipe for s in self.slots if s.pid and s is not slot]
        for fd in (reading, self._life, self._news_read, self._wake_read, self._wake_write, *others):
            os.close(fd)
        self.name.close()
        if self.store:
            self.store.fork_safe_reset()
        child.main(
            child.Setup(
                worker=self.name.text,
                slot=slot.number,
                pools=self.pools,
                paths=self.paths,
                folder=self.folder,
                log_name=slot.log_name,
                board=slot.board,
                lines=writing,
                news=self._news_write,
                supervisor=parent,
                half=self.half,
                result_limit=self.settings.result_limit,
                open_store=self.open_store,
            )
        )

    def _hear(self) -> None:
        for slot in self.slots:
            if slot.pid:
                for letter, text in slot.read():
                    self._heard(slot, letter, text)
                if slot.body and slot.body.owed and slot.body.pgid:
                    slot.body.owed = False
                    self._signal(slot, slot.body, signal.SIGTERM)

    def _heard(self, slot: Slot, letter: str, text: str) -> None:
        if letter == "L":
            self._lose(text)
            slot.lost = True
        elif letter == "K":
            slot.lost = False
            self._back()
        else:
            self.log(text)

    def _reap(self) -> None:
        for slot in self.slots:
            if not slot.pid:
                continue
            ended, status = _has_ended(slot.pid)
            if not ended:
                continue
            for letter, text in slot.read():
                self._heard(slot, letter, text)
            child.kill_group(slot.pid)
            if slot.body and slot.body.pgid:
                child.kill_group(slot.body.pgid)
                self._news(f"-{slot.body.pgid}\n")
            if status is None:
                status = os.waitpid(slot.pid, 0)[1]
            self._news(f"-{slot.pid}\n")
            self._bury(slot, os.waitstatus_to_exitcode(status))
        if os.getpid() == 1:
            self._reap_orphans()
        if self._guardian.poll() is not None and self.state == "running":
            self.log("the guardian died; a new one takes over")
            self._start_guardian()

    def _reap_orphans(self) -> None:
        """As the first process of a container, we inherit what others' children left."""
        ours = {self._guardian.pid, *(slot.pid for slot in self.slots)}
        while (
            ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ) and ended.si_pid not in ours:
            os.waitpid(ended.si_pid, 0)

    def _bury(self, slot: Slot, status: int) -> None:
        """A child is gone: whatever it held is reported, or given back, and a new one will come."""
        now = wire.monotonic_ms()
        pid, slot.pid = slot.pid, 0
        os.close(slot.pipe)
        if slot.lost:
            slot.lost = False
            self._back()
        quick = now - slot.born < 1000 and not slot.ran_something and not slot.recycling and status != 0
        slot.quick_deaths = slot.quick_deaths + 1 if quick else 0
        slot.fork_at = now + (min(5000, 100 * 2 ** min(slot.quick_deaths, 10)) if quick else 0)
        if status != 0:
            how = bodies.killed(-status) if status < 0 else f"exit code {status}"
            running = f" in {slot.body.title}" if slot.body else ""
            self.log(f"child {slot.number} (pid {pid}) ended: {how}{running}")
        self._settle(slot, status)
        for path in self.folder.glob(f"{slot.log_name}*"):
            path.unlink(missing_ok=True)

    def _settle(self, slot: Slot, status: int) -> None:
        nonce, body = slot.nonce, slot.body
        rest, done, reports = slot.take()
        release = list(done)
        if body and body.verdict == "stopped":
            rest = [body.hint, *rest]
            self._last_lines(slot, body, "redsched: stopped with its worker; given back, to be run again")
        elif body:
            release.append(body.hint)
            reason = child.timed_out(body.timeout_ms) if body.verdict == "timeout" else bodies.ended(status)
            if body.verdict != "unwanted":
                report = Report(body.hint.attempt_id, "failed", body.elapsed(wire.monotonic_ms()), reason)
                self.log(f"{body.title} failed: {reason}")
                reports.append(report)
            self._last_lines(slot, body, f"redsched: {reason}")
        self._send(nonce, reports, release, rest)
        slot.forget()

    def _last_lines(self, slot: Slot, body: Body, text: str) -> None:
        """What a dead child had not stored of its body's log."""
        log = slot.open_log(self.folder, self.half, self.settings.result_limit)
        if log is None:
            return
        body.log = None  # it outlives the body, until it is stored

        def ship(store: Store) -> None:
            for offset, data in log.pieces(body.shipped, log.size()):
                _log_write(body.hint.attempt_id, offset, data, store)
                body.shipped = offset + len(data)
            log.close()

        log.note(text)
        self.outbox.append(ship)

    def _send(self, nonce: str, reports: list[Report], release: list[Hint], give_back: list[Hint]) -> None:
        """Report, then release; what was not begun goes back. Each is said until Redis has answered."""
        if reports:
            self.outbox.append(lambda store: store.shard.report(self.number or 0, reports))
        if release:
            self.outbox.append(lambda store: store.pool.release(nonce, release))
        if give_back:
            self.outbox.append(lambda store: store.pool.give_back(self.name.text, nonce, give_back))

    # ---------------------------------------------------------------- bodies

    def _mind(self, slot: Slot, body: Body, now: float) -> None:
        """Time-outs, escalation, and prefetch that would have to wait."""
        if body.timeout_ms and now >= body.begun + body.timeout_ms:
            self._stop(slot, body, "timeout", now)
        if body.kill_at is not None and now >= body.kill_at:
            self._kill(slot, body, now)
        if body.give_up_at is not None and now >= body.give_up_at:
            if slot.board.cells[wire.BODY] == body.serial:
                os.kill(slot.pid, signal.SIGKILL)
            body.give_up_at = None
        if not body.taken and now >= body.begun + wire.TAKE_S * 1000:
            self._take(slot, body)
        if now >= body.next_tail:
            self._tail(slot, body, now)

    def _take(self, slot: Slot, body: Body) -> None:
        """Nobody waits behind a long body: what else the child holds is reported, or given back."""
        if not slot.in_state("held", "over"):
            body.taken = True
            return
        with slot.board.holding(body.serial) as on:
            if not on:
                return
            slot.board.cells[wire.TAKEN] = body.serial
        body.taken = True
        rest, done, reports = slot.take()
        self._send(slot.nonce, reports, done, rest)

    def _stop(self, slot: Slot, body: Body, verdict: wire.Verdict, now: float) -> None:
        if body.verdict:
            return
        with slot.board.holding(body.serial) as on:
            if not on:
                return
            slot.board.judge(body.serial, verdict)
            body.verdict = verdict
            body.kill_at = now + body.grace_ms
            if body.kind == "c" and body.pgid is None:
                body.owed = True
            else:
                self._signal(slot, body, signal.SIGTERM)

    def _kill(self, slot: Slot, body: Body, now: float) -> None:
        with slot.board.holding(body.serial) as on:
            if on:
                self._signal(slot, body, signal.SIGKILL)
        body.kill_at = None
        body.give_up_at = now + STUCK_MS

    @staticmethod
    def _signal(slot: Slot, body: Body, number: signal.Signals) -> None:
        """To the body's process group; a stopped one is woken to hear it."""
        group = body.pgid if body.kind == "c" else slot.pid
        if group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
                if number != signal.SIGKILL:
                    os.killpg(group, signal.SIGCONT)

    def _tail(self, slot: Slot, body: Body, now: float) -> None:
        """Store what the log has grown by, so that it can be read while the body runs."""
        log = slot.open_log(self.folder, self.half, self.settings.result_limit)
        size = log.size() if log else 0
        grown = size - body.shipped
        if log is None or grown <= 0:
            body.tail_ms = min(TAIL_MS[1], body.tail_ms * 1.25)
        else:
            body.tail_ms = FAST_TAIL_MS if grown > FAST_BYTES else TAIL_MS[0]
            with slot.board.holding(body.serial) as on:
                if on:
                    self._ship(body, log, size)
                    slot.board.cells[wire.SHIPPED] = body.shipped
                    slot.board.cells[wire.SHIPPED_OF] = body.serial
                    log.trim(body.shipped)
                    slot.board.cells[wire.CUT] = log.cut
        body.next_tail = now + body.tail_ms

    def _ship(self, body: Body, log: LogFile, size: int) -> None:
        for offset, data in log.pieces(body.shipped, size):
            write = partial(_log_write, body.hint.attempt_id, offset, data)
            if not self._try(write)[0]:
                return
            body.shipped = offset + len(data)

    # ---------------------------------------------------------------- Redis

    def _keep(self, now: float) -> None:
        """Everything that is due at Redis, the leases first. Stops at the first sign that Redis is away."""
        if now >= self.next_heartbeat:
            self._heartbeat(now)
        if now >= self.next_beat:
            self._beat(now)
        if self.number is not None:
            self._notice(now)
        while self.outbox and self._try(self.outbox[0])[0]:
            self.outbox.popleft()

    def _try(self, call: Callable[[Store], Any]) -> tuple[bool, Any]:
        """(whether Redis has answered, the answer). What it refuses for good is logged and not said again."""
        if wire.monotonic_ms() < self.away_until:
            return False, None
        try:
            if self.store is None:
                self.store = self.open_store()  # may need the network: a cluster asks for its slots
            answer = call(self.store)
        except Unavailable as error:
            low, high = PAUSE_MS
            self.pause = min(high, max(low, self.pause * 2))
            self.away_until = wire.monotonic_ms() + self.pause
            self._lose(bodies.clean(str(error)))
            return False, None
        except NotFound:
            answer = None
        except RedschedError as error:
            self.log(f"refused: {bodies.clean(str(error))}")
            answer = None
        if self.pause:
            self.pause = 0.0
            self._back()
        return True, answer

    def _heartbeat(self, now: float) -> None:
        """Renew what has been held for a while; a grant that is younger has most of its lease before it."""
        interval = self.settings.worker_lease_ms / 5
        by_pool: dict[str, list[str]] = {}
        for slot in self.slots:
            if slot.hints and now - slot.since > interval / 2:
                for hint in slot.in_state("held", "on", "over"):
                    by_pool.setdefault(hint.pool, []).append(hint.attempt_id)
        self.next_heartbeat = now + interval
        for pool, ids in by_pool.items():
            answered, unwanted = self._try(partial(self._renew, pool, ids))
            if not answered:
                self.next_heartbeat = now
                return
            if unwanted:
                self._unwanted(set(unwanted), now)

    def _renew(self, pool: str, ids: list[str], store: Store) -> list[str]:
        return store.pool.heartbeat(self.name.text, pool, ids)

    def _unwanted(self, ids: set[str], now: float) -> None:
        self._hear()  # because a child may have gone on since
        for slot in self.slots:
            body = slot.body
            if body and body.hint.attempt_id in ids and not body.verdict:
                self.log(f"{body.title} is not wanted any more: stopping it")
                self._stop(slot, body, "unwanted", now)
            if any(h.attempt_id in ids for h in slot.in_state("held")):
                slot.board.cells[wire.RECHECK] = 1

    def _beat(self, now: float) -> None:
        info = {
            "pools": list(self.pools),
            "concurrency": len(self.slots),
            "running": sum(1 for s in self.slots if s.body),
            "state": self.state,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        answered, number = self._try(lambda store: store.control.worker_beat(self.name.text, info))
        if answered and number is not None:
            if self.number is None:
                self._tell("worker_joined", f"{len(self.slots)} slots, pools {', '.join(self.pools)}")
            self.number = number
            for slot in self.slots:
                slot.board.cells[wire.WORKER] = number + 1
            self.next_beat = now + BEAT_MS

    def _tell(self, kind: str, about: str) -> None:
        text = f"worker {self.name.text} {kind.removeprefix('worker_')}{about and ', '}{about}"
        self._try(lambda store: store.events.add(kind, text, worker=self.name.text))

    def _notice(self, now: float) -> None:
        """Bodies that have run for a while are shown as running, once."""
        fresh = [
            s.body for s in self.slots if s.body and not s.body.noticed and s.body.elapsed(now) >= NOTICE_MS
        ]
        number = self.number
        if fresh and number is not None:
            items = [(b.hint.attempt_id, b.elapsed(now)) for b in fresh]
            if self._try(lambda store: store.shard.running(number, items))[0]:
                for body in fresh:
                    body.noticed = True

    def _lose(self, why: str) -> None:
        if not self.lost_at:
            self.lost_at, self.lost_why = wire.monotonic_ms(), why

    def _mourn(self, now: float) -> None:
        """A loss is worth a line once it has lasted; what is mended at once is told of now and then."""
        if self.lost_at and self.lost_why and now - self.lost_at >= LOSS_MS:
            self.log(f"Redis does not answer: {self.lost_why}; bodies go on, reports wait")
            self.lost_why = ""

    def _back(self) -> None:
        if not self.lost_at or self.pause or any(s.lost for s in self.slots):
            return
        now = wire.monotonic_ms()
        if not self.lost_why:
            self.log(f"Redis is back after {(now - self.lost_at) / 1000:.1f} s")
        elif now >= self.next_blip:
            self.log(f"the connection to Redis broke and was made again: {self.lost_why}")
            self.next_blip = now + BLIP_MS
        self.lost_at = 0.0

    # ---------------------------------------------------------------- guardian, log

    def _start_guardian(self) -> None:
        if self._life < 0:
            self._news_read, self._news_write = os.pipe()
            os.set_blocking(self._news_write, False)  # a guardian that is stuck must not stop us
        else:
            os.close(self._life)
        life_read, self._life = os.pipe()
        self._guardian = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", guardian.__file__),
                *(str(life_read), str(self._news_read), str(self.folder)),
            ],
            pass_fds=(life_read, self._news_read),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(life_read)
        groups = [s.pid for s in self.slots if s.pid] + [
            s.body.pgid for s in self.slots if s.body and s.body.pgid
        ]
        for group in groups:
            self._news(f"+{group}\n")

    def _stop_guardian(self) -> None:
        for fd in (self._life, self._news_write, self._news_read):
            os.close(fd)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guardian.wait(2)

    def _news(self, line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._news_write, line.encode())

    def log(self, text: str) -> None:
        """A line on stderr; of a flood of failures only so many a second."""
        now = time.monotonic()
        while self._lines and now - self._lines[0] > 1:
            self._lines.popleft()
        if len(self._lines) >= LINES_A_SECOND:
            self._swallowed += 1
            return
        self._lines.append(now)
        more, self._swallowed = self._swallowed, 0
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        tail = f" (and {more} more lines before this)" if more else ""
        with contextlib.suppress(OSError):
            os.write(2, f"{stamp} worker {self.name.text}: {text}{tail}\n".encode(errors="backslashreplace"))


def _has_ended(pid: int) -> tuple[bool, int | None]:
    """(whether, its status if it had to be reaped to know). Not reaped where that can be helped (`waitid` came to
    macOS with Python 3.13): until then its number, which is its group's too, can't become anybody else's."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, None
    ended, status = os.waitpid(pid, os.WNOHANG)
    return bool(ended), status


def _log_write(attempt_id: str, offset: int, data: bytes, store: Store) -> None:
    with contextlib.suppress(NotFound):
        store.shard.log_write(attempt_id, offset, data)


def _deadlines(body: Body) -> list[float]:
    times = [body.next_tail]
    if not body.taken:
        times.append(body.begun + wire.TAKE_S * 1000)
    if body.timeout_ms and not body.verdict:
        times.append(body.begun + body.timeout_ms)
    times += [t for t in (body.kill_at, body.give_up_at) if t is not None]
    return times


def run_worker(
    settings: Settings,
    *,
    pools: Sequence[str],
    concurrency: int,
    paths: Sequence[Path],
    grace_s: float,
    name: str | None = None,
) -> int:
    """Serve the pools until told to stop. SIGTERM or SIGINT drains, a second one stops the bodies; returns 0."""
    from redsched.definition import config, python  # noqa: F401 - loaded once, before the children are forked
    from redsched.store.connect import NOT_RUNNING

    if settings.redis is None:
        raise Unavailable(NOT_RUNNING)
    settings.address()  # a wrong URL is said now, not by every child
    roots = config.import_roots(list(paths))
    worker = Worker(settings, pools=pools, concurrency=concurrency, paths=roots, grace_s=grace_s, name=name)
    return worker.run()
