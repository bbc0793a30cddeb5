"""Processes whose calls to Redis are counted one by one, each command of a pipeline too, and which one of them can strike.

`World` is an installation of one scheduler, worker and client that stand in one thread. The one under test may be killed
at any call, and is then replaced under a new name; time passes only when nothing else happens (`later`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

from redis import ConnectionPool, Redis
from redis.client import Pipeline
from redis.exceptions import ResponseError, TimeoutError

from redsched.client import Client
from redsched.errors import Conflict, NotFound, Unavailable
from redsched.keys import AttemptId, Keys
from redsched.scheduler.loop import Scheduler
from redsched.settings import Settings
from redsched.store import Store
from redsched.store.connect import Clients
from redsched.store.pool import Hint
from redsched.store.quick import QUICK, Quick, _Line, _packed
from redsched.store.scripts import all_scripts
from redsched.store.shard import Report

from .recount import Recount, dump

NAMESPACE = "step"
LINES: list[_Line] = []
Fate = Literal["", "dead", "unanswered", "repeated"]
Words = tuple[Any, ...]
Send = Callable[[], Any]
Onlooker = Callable[[Words, Send], Any]  # sees what is said, and says it
# After these the server is as it was before: to be killed there is to be killed before.
READS = frozenset(
    [
        "TIME",
        "GET",
        "MGET",
        "GETRANGE",
        "HGET",
        "HMGET",
        "HGETALL",
        "HLEN",
        "HKEYS",
        "SMEMBERS",
        "SCARD",
        "ZCARD",
        "ZRANGE",
        "ZREVRANGE",
        "ZRANGEBYSCORE",
        "XLEN",
        "XREAD",
    ]
)


class Killed(BaseException):
    """kill -9: nobody catches it, and nothing is said afterwards."""


@dataclass
class Line:
    """How one process talks to Redis, and what becomes of its call number `at`.

    dead: the reply comes, then the process is killed. unanswered: the call runs, the process is killed before it hears the
    reply. repeated: the call runs, its reply is lost, the process lives.
    """

    fate: Fate = ""
    at: int = 0
    calls: list[str] = field(default_factory=list)
    dead: bool = False

    def say(self, words: Words, send: Send) -> Any:
        if self.dead:
            raise Killed
        self.calls.append(named(words))
        strikes = len(self.calls) == self.at
        try:
            answer = send()
        except ResponseError as error:
            if str(error).startswith("Function not found"):
                self.calls.pop()
            elif strikes:
                self._strike()
            raise
        if strikes:
            self._strike()
        return answer

    @property
    def struck(self) -> bool:
        return bool(self.fate) and len(self.calls) >= self.at

    def _strike(self) -> None:
        self.dead = self.fate != "repeated"
        if self.fate == "unanswered":
            raise Killed
        if self.fate == "repeated":
            raise TimeoutError("Timeout reading from socket")


def named(words: Words) -> str:
    """`pool/start`, `ZADD`, … A look at what was delivered before is no XREADGROUP: it takes nothing."""
    first = str(words[0])
    if first == "FCALL":
        return functions()[words[1]]
    return "XREAD" if first == "XREADGROUP" and words[-1] == "0" else first


@cache
def functions() -> dict[str, str]:
    return {script.function: name for name, script in all_scripts().items()}


class Wire(Quick):
    """A client whose every command goes through its line, each alone, on the one connection that all of them share."""

    line: Line
    onlooker: Onlooker
    many = None  # type: ignore[assignment]

    def close(self) -> None:
        """The connection goes on being the others'; garbage collection would close it, too."""

    def execute_command(self, *words: Any, **options: Any) -> Any:
        return self.line.say(words, lambda: self.onlooker(words, lambda: self._one(words, options)))

    def _one(self, words: Words, options: dict[str, Any]) -> Any:
        (reply,) = self._say(_packed(words), 1)
        if isinstance(reply, Exception):
            raise reply
        options.pop("keys", None)
        heard = None if words[0] in QUICK else self.response_callbacks.get(words[0])
        return heard(reply, **options) if heard else reply

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        assert not transaction
        return Pipe(self)


class Pipe(Pipeline):
    """A pipeline that is cut anywhere: its commands are said one after the other."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire.connection_pool, wire.response_callbacks, False, None)
        self.wire = wire

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack, replies = list(self.command_stack), []
        self.reset()
        for words, options in stack:
            try:
                replies.append(self.wire.execute_command(*words, **options))
            except ResponseError as error:
                replies.append(error)
        if raise_on_error:
            for reply in replies:
                if isinstance(reply, ResponseError):
                    raise reply
        return replies


class Steady(Scheduler):
    """A scheduler for which time passes when the test says so."""

    def __init__(self, store: Store, name: str, told: list[str]) -> None:
        super().__init__(store, name)
        self._due = defaultdict(float)
        self._did: set[str] = set()
        self.rare = {"retain", "sweep"}  # done once: nothing may have to wait for it
        self.dispatch.hooks._threads = SimpleNamespace(submit=lambda f, *a: f(*a), shutdown=lambda **_: None)  # type: ignore[assignment]
        self.dispatch.hooks._tell = lambda member: told.append(member)  # type: ignore[method-assign]

    def redis_now(self) -> int:
        """A little ahead, so that what is due in this very millisecond is due in each play."""
        return super().redis_now() + 50

    def _is_due(self, what: str, every_s: float) -> bool:
        if what == "pack":
            return bool(self._to_pack)
        fresh = what not in self._did
        self._did.add(what)
        return fresh

    def _next_beat(self) -> float:
        return 0.0 if self._is_due("beat", 0) else float("inf")

    def _wait_ms(self) -> int:
        return 0

    def later(self) -> None:
        self._did &= self.rare
        for state in self.dispatch.states.values():
            state.next_timer, state.next_hook = (min(t, 1) for t in (state.next_timer, state.next_hook))
            state.next_backfill = min(state.next_backfill, 1)

    def until_idle(self) -> None:
        """Turns as `run` takes them, until there is nothing to do but to wait."""
        for _ in range(200):
            try:
                self.turn()
                if not self._to_pack and not self.dispatch.busy(self.redis_now()) and not self.wait(0):
                    return
            except Unavailable:
                self.doubt()
        raise AssertionError("a scheduler that never rests")


@dataclass
class Body:
    """An attempt that is under a grant, and whether it goes on."""

    hint: Hint
    nonce: str
    report: Report | None


class Worker:
    """Read, start, run, report, release, as the real one orders them; long bodies are held under heartbeats."""

    def __init__(self, world: World, store: Store, name: str) -> None:
        self.world, self.store, self.name = world, store, name
        self.held: dict[str, Body] = {}
        self.history, self.turns, self.number = True, 0, 0

    def say(self, call: Callable[..., Any], *args: Any) -> Any:
        for _ in range(100):
            try:
                return call(*args)
            except Unavailable:
                continue
        raise AssertionError("never answered")

    def turn(self) -> int:
        """Returns how many hints there were."""
        if not self.number:
            self.number = self.say(self.store.control.worker_beat, self.name, {"pools": self.world.pools})
        self.heartbeat()
        hints = self.read()
        if hints:
            self.batch(hints)
        return len(hints)

    def read(self) -> list[Hint]:
        try:
            hints = self.store.pool.read(self.name, self.world.pools, 7, 0, history=self.history)
        except Unavailable:
            self.history = True
            return self.read()
        if not hints and self.history:
            self.history = False
            return self.read()
        return hints

    def batch(self, hints: list[Hint]) -> None:
        self.turns += 1
        nonce = f"{self.name}-{self.turns}"
        answers = self.say(self.store.pool.start, self.name, nonce, hints)
        granted = [h for h, ok in zip(hints, answers, strict=True) if ok]
        over = []
        for hint in granted:
            if self.world.give_back:
                self.say(self.store.pool.give_back, self.name, nonce, [hint])
                continue
            report = self.run(hint)
            if report is None:
                self.held[hint.attempt_id] = Body(hint, nonce, None)
                self.say(self.store.shard.running, self.number, [(hint.attempt_id, 1)])
            else:
                over.append((hint, report))
        self.finish(nonce, over)

    def run(self, hint: Hint) -> Report | None:
        self.world.ran[hint.attempt_id] += 1
        return self.world.body(self, AttemptId.parse(hint.attempt_id))

    def finish(self, nonce: str, over: Sequence[tuple[Hint, Report]]) -> None:
        if over:
            self.say(self.store.shard.report, self.number, [r for _, r in over])
            self.say(self.store.pool.release, nonce, [h for h, _ in over])

    def heartbeat(self) -> None:
        """What is not wanted any more is stopped, and its grant released."""
        pools: dict[str, list[str]] = defaultdict(list)
        for attempt, body in self.held.items():
            pools[body.hint.pool].append(attempt)
        for pool, attempts in pools.items():
            for attempt in self.say(self.store.pool.heartbeat, self.name, pool, attempts):
                body = self.held.pop(attempt)
                self.world.stopped.append(attempt)
                self.say(self.store.pool.release, body.nonce, [body.hint])

    def end_bodies(self) -> None:
        """The long bodies are over, well."""
        for attempt, body in list(self.held.items()):
            self.finish(body.nonce, [(body.hint, Report(attempt, "success", 5))])
            self.held.pop(attempt)

    def leave(self) -> None:
        self.say(self.store.pool.leave, self.name, self.world.pools)
        self.say(self.store.control.worker_leave, self.name)


def short(worker: Worker, attempt: AttemptId) -> Report | None:
    return Report(str(attempt), "success", 1)


class World:
    """See the module. `line` belongs to the process under test, `victim` says which that is."""

    def __init__(self, url: str, victim: str, line: Line) -> None:
        self.onlooker: Onlooker = lambda words, send: send()
        self.settings = Settings(redis=url, namespace=NAMESPACE, shards=2)
        self.connections = shared(url)
        self.admin: Any = Redis(connection_pool=self.connections)
        self.keys = Keys(NAMESPACE)
        self.victim, self.line = victim, line
        self.pools, self.body, self.give_back = ["default"], short, False
        self.ran: Counter[str] = Counter()
        self.stopped: list[str] = []
        self.told: list[str] = []
        self.charged: list[str] = []
        self.made: Counter[str] = Counter()
        self.under_test = False
        self.new_scheduler()
        self.new_worker()
        self.new_client()
        self.person = self._client(Line())  # somebody to whom nothing happens

    # ---- processes

    def store(self, line: Line) -> Store:
        wire = Wire(connection_pool=self.connections)
        wire._lines = LINES
        wire.line, wire.onlooker = line, lambda words, send: self.onlooker(words, send)
        return Store(self.settings, Clients(wire, wire, 0, "test", NAMESPACE))

    def _line(self, kind: str) -> Line:
        """The one under test has the line that is counted; whoever comes after it, another."""
        return self.line if self.under_test and kind == self.victim and not self.line.dead else Line()

    def _name(self, kind: str) -> str:
        self.made[kind] += 1
        return f"{kind[0]}{self.made[kind]}"

    def new_scheduler(self) -> None:
        self.scheduler = Steady(self.store(self._line("scheduler")), self._name("scheduler"), self.told)
        if self.victim == "client":
            self.scheduler.rare.discard("sweep")  # but for what a client has begun and not ended

    def new_worker(self) -> None:
        self.worker = Worker(self, self.store(self._line("worker")), self._name("worker"))

    def new_client(self) -> None:
        self.client = self._client(self._line("client"))

    def _client(self, line: Line) -> Client:
        made = Client(settings=self.settings)
        made.store, made._reached = self.store(line), True
        return made

    def test(self) -> None:
        """From here on calls of the process under test are counted. It is a fresh one; the one before is gone."""
        self.under_test = True
        self.bury(self.victim)

    def alive(self, kind: str, act: Callable[[], Any]) -> Any:
        """Do it; if the process dies of it, there is a new one, and what it held is nobody's."""
        try:
            return act()
        except Killed:
            self.bury(kind)
            return None

    def bury(self, kind: str) -> None:
        if kind == "scheduler":
            self.admin.zadd(self.keys.control + "schedulers", {self.scheduler.ownership.name: 1})
        getattr(self, f"new_{kind}")()

    def wish(self, act: Callable[[Client], Any]) -> Any:
        """What a person wants. Of a client that died (`dead`) nobody asks again; else the next one is asked the same."""
        for _ in range(5):
            try:
                return act(self.client)
            except Killed:
                self.bury("client")
                if self.line.fate == "dead":
                    return None
            except Unavailable:
                continue
            except (Conflict, NotFound):
                if self.line.struck:
                    return None  # the one before has done it
                raise
        raise AssertionError("asked too often")

    # ---- time

    def settle(self, rests: int = 3) -> None:
        """Everybody does what there is to do, until time has passed so often without any work."""
        rested = 0
        for _ in range(200):
            before = self.made.total()
            self.alive("scheduler", lambda: self.scheduler.until_idle())
            if self.alive("worker", lambda: self.worker.turn()) or self.made.total() > before:
                rested = 0  # there was work, or somebody new has come, who has not looked yet
                continue
            if rested == rests:
                return
            rested += 1
            if rested == 2:
                self.alive("worker", lambda: self.worker.end_bodies())
            self.later()
        raise AssertionError("never at rest")

    def later(self) -> None:
        """All that has a time is due: timers, what is looked at later, leases of the dead, what they read and never started."""
        shards, pools = (
            (self.keys.shard(n) for n in range(2)),
            (self.keys.pool(p) for p in {*self.pools, "default"}),
        )
        self.admin.eval(LATER, 0, " ".join(shards), " ".join(pools), *self.worker.held)
        self.scheduler.later()

    def now(self) -> int:
        seconds, micros = self.admin.time()
        return int(seconds * 1000 + micros // 1000)

    # ---- what there is

    def recount(self) -> Recount:
        return Recount.of(self.admin, NAMESPACE)

    def dump(self, cell: str) -> dict[str, Any]:
        return dump(self.admin, cell)

    def end(self) -> None:
        self.admin.flushdb()
        self.client.close()


LATER = """
local held, time = {}, redis.call('TIME')
for i = 3, #ARGV do held[ARGV[i]] = true end
local function now_due(key)
  for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    if not held[member] then redis.call('ZADD', key, 1, member) end
  end
end
for shard in string.gmatch(ARGV[1], '%S+') do
  for _, name in ipairs({ 'timers', 'backfill_look', 'hooks' }) do now_due(shard .. name) end
end
for pool in string.gmatch(ARGV[2], '%S+') do
  now_due(pool .. 'lease')
  if redis.call('EXISTS', pool .. 'meta') == 1 then redis.call('HSET', pool .. 'meta', 'grace', 0, 'swept', time[1] .. '000') end
  local pending = redis.pcall('XPENDING', pool .. 'stream', 'workers', '-', '+', 100)
  for _, p in ipairs(pending.err and {} or pending) do
    redis.call('XCLAIM', pool .. 'stream', 'workers', p[2], 0, p[1], 'IDLE', 60000, 'JUSTID')
  end
end
"""


@cache
def shared(url: str) -> ConnectionPool:
    return ConnectionPool.from_url(url)
