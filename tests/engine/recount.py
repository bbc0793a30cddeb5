"""An installation at rest, recounted from what lies in Redis: nothing is left over, and every counter is what it counts.

Knows the schema (`lua/README.md`) and the codecs, none of the scripts: what they keep is held against the runs themselves.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Self

from redsched.keys import AttemptId
from redsched.store import codec
from redsched.store.codec import RunRecord

Dump = dict[str, Any]

# What may lie in a cell when nothing is to be done. Of a run, besides its packed value, what people read later.
AT_REST = {
    "s": r"owner|fence|meta|recent|slots|dags|generations|dag:D|plan:D:\w+|runs:D|dates:D|packed:D|skips:D|backfills:D"
    r"|backfill:D:\w+|params:D:R|results:D:R|keys:D:R|logs:D:R|log:D:R:\d+\.\d+",
    "p": r"meta|done|tags|shares:\d+",
    "c": r"settings|schedulers|leader|leader_fence|owners|pools|workers|worker_info|worker_numbers|worker_names|after"
    r"|backfill_seq|backfills|events",
}
IDS = {"D": r"[\w.-]+", "R": r"[\w.-]+"}


def text(found: Any) -> dict[str, str]:
    return {k.decode(): v.decode(errors="replace") for k, v in (found or {}).items()}


def members(found: Any) -> list[str]:
    return [(m[0] if isinstance(m, tuple | list) else m).decode() for m in found or ()]


DUMP = """
local read = { string = { 'GET' }, hash = { 'HGETALL' }, set = { 'SMEMBERS' }, zset = { 'ZRANGE', 0, -1, 'WITHSCORES' },
  list = { 'LRANGE', 0, -1 }, stream = { 'XRANGE', '-', '+' } }
local found = {}
for i, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, pending = redis.call('TYPE', key).ok, 0
  local words = read[kind]
  if kind == 'stream' then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do pending = pending + redis.call('XPENDING', key, group[2])[1] end
  end
  found[i] = { key, kind, redis.call(words[1], key, unpack(words, 2)), pending }
end
return found
"""
GOING = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do if redis.call('TTL', key) > 0 then found[#found + 1] = key end end
return found
"""


def dump(redis: Any, prefix: str) -> Dump:
    """Every key that begins so with what it holds; of a stream its entries, and how many are pending."""
    return {k.decode(): _held(*held) for k, *held in redis.eval(DUMP, 0, prefix + "*")}


def _held(kind: bytes, value: Any, pending: int) -> Any:
    if kind in (b"hash", b"zset"):
        pairs = dict(zip(value[::2], value[1::2], strict=True))
        return pairs if kind == b"hash" else sorted((k, float(v)) for k, v in pairs.items())
    if kind == b"set":
        return set(value)
    if kind == b"stream":
        return {"entries": value, "pending": pending}
    return value


class Recount:
    """`trouble` is what is wrong, in words; `runs` all runs by (dag, run). What expires by itself (`goes`) may be left."""

    def __init__(self, dump: Dump, goes: set[str]) -> None:
        self.dump = {k: v for k, v in dump.items() if k not in goes}
        self.trouble: list[str] = []
        self.runs: dict[tuple[str, str], RunRecord] = {}
        self.fields: dict[tuple[str, str], dict[str, str]] = {}
        self._keys()
        for prefix in sorted({k.partition("}:")[0] + "}:" for k in self.dump}):
            if ":s:" in prefix:
                self._shard(prefix)
        self._control()

    @classmethod
    def of(cls, redis: Any, namespace: str) -> Self:
        going = redis.eval(GOING, 0, f"{{{namespace}:*")
        return cls(dump(redis, f"{{{namespace}:"), {k.decode() for k in going})

    def check(self, good: object, words: str) -> None:
        if not good:
            self.trouble.append(words)

    def _keys(self) -> None:
        for key in self.dump:
            cell = key.split(":")[1][0]
            name = key.partition("}:")[2]
            pattern = re.sub(r"\b[DR]\b", lambda m: IDS[m[0]], AT_REST[cell])
            left = self.dump[key] if name in ("inbox", "stream") else {"a key": self.dump[key]}
            self.check(re.fullmatch(pattern, name) or not any(left.values()), f"{key} is left over: {left}")
            if cell == "s" and name.partition(":")[0] in ("params", "results", "keys", "logs", "log"):
                _, dag, run, *_ = name.split(":")
                known = members(self.dump.get(key.partition("}:")[0] + f"}}:runs:{dag}"))
                self.check(run in known, f"{key} belongs to no run")

    def _shard(self, prefix: str) -> None:
        dags = members(self.dump.get(prefix + "dags"))
        for dag in dags:
            self._dag(prefix, dag)
        named = {
            k[len(prefix) :].split(":")[1]
            for k in self.dump
            if k.startswith(prefix) and ":" in k[len(prefix) :]
        }
        self.check(named <= set(dags), f"{prefix} has keys of DAGs that do not exist: {named - set(dags)}")
        for member in members(self.dump.get(prefix + "recent")):
            self.check(tuple(member.split("/")) in self.runs, f"{prefix}recent names {member}, which is gone")

    def _dag(self, prefix: str, dag: str) -> None:
        listed = members(self.dump.get(f"{prefix}runs:{dag}"))
        packed = self.dump.get(f"{prefix}packed:{dag}") or {}
        self.check(
            set(listed) == {k.decode() for k in packed}, f"runs of {dag}: {listed}, packed: {list(packed)}"
        )
        dates: Counter[int] = Counter()
        for run, value in packed.items():
            record = codec.run_from_packed(value)
            self.runs[dag, run.decode()] = record
            if record.logical is not None:
                dates[record.logical] += 1
            self.fields[dag, run.decode()] = codec.unpack(value)[0]
            self._run(prefix, dag, run.decode(), record)
        known = {int(score): run.decode() for run, score in self.dump.get(f"{prefix}dates:{dag}") or ()}
        self.check(set(known) == set(dates), f"dates of {dag}: {known}, its runs say {dates}")
        self.check(set(dates.values()) <= {1}, f"a date of {dag} has two runs: {dates}")
        for ident in members(self.dump.get(f"{prefix}backfills:{dag}")):
            self._backfill(prefix, dag, ident)

    def _run(self, prefix: str, dag: str, run: str, record: RunRecord) -> None:
        plan = text(self.dump[f"{prefix}plan:{dag}:{record.digest}"])
        size, spec, names = int(plan["n"]), json.loads(plan["spec"]), json.loads(plan["names"])
        tasks = [codec.decode_record(record.tasks.get(i)) for i in range(size)]
        open_tasks = [
            t
            for t in tasks
            if t.state not in ("success", "failed", "skipped", "upstream_failed", "cancelled")
        ]
        where = f"run {run} of {dag}"
        self.check(record.state in ("success", "failed", "cancelled"), f"{where} is {record.state}")
        self.check(
            record.left == len(open_tasks), f"{where}: left {record.left}, recounted {len(open_tasks)}"
        )
        if record.state != "cancelled" and "run" not in record.tries:
            self.check(not open_tasks, f"{where} has ended with {open_tasks}")
        failed = [
            n
            for n, t in zip(names, tasks, strict=True)
            if t.state == "failed" and not spec["tasks"][n].get("allow_failure")
        ]
        self.check(record.failed == len(failed), f"{where}: failed {record.failed}, recounted {failed}")
        if record.state != "cancelled" and "run" not in record.tries:
            self.check((record.state == "failed") == bool(failed), f"{where} is {record.state} with {failed}")
        fields = self.fields[dag, run]
        for word in ("frozen", "reopen"):
            self.check(word not in fields, f"{where} still has {word}")
        self.check(int(fields.get("pending", 0)) == 0, f"{where}: pending {fields.get('pending')}")

    def _backfill(self, prefix: str, dag: str, ident: str) -> None:
        fields = text(self.dump[f"{prefix}backfill:{dag}:{ident}"])
        mine = [at for at in self.runs if at[0] == dag and self.fields[at].get("backfill") == ident]
        new = [at for at in mine if self.fields[at]["nonce"] == f"backfill {ident}"]
        where = f"backfill {ident}"
        self.check(fields["state"] in ("done", "cancelled"), f"{where} is {fields['state']}")
        made, existing = int(fields.get("made", 0)), int(fields.get("existing", 0))
        self.check(made == len(new), f"{where}: made {made}, recounted {new}")
        states = Counter(self.runs[at].state for at in mine)
        counted = {s: int(fields[s]) for s in ("success", "failed", "cancelled") if s in fields}
        self.check(states == counted, f"{where}: counted {counted}, its runs say {states}")
        if fields["state"] == "done":
            self.check(
                made + existing == int(fields["planned"]),
                f"{where}: {made} + {existing} of {fields['planned']}",
            )

    def _control(self) -> None:
        control = next((k.partition("}:")[0] + "}:" for k in self.dump if ":c}:" in k), "")
        owners = text(self.dump.get(control + "owners"))
        for shard, token in owners.items():
            truth = self.dump.get(control.replace(":c}", f":s:{shard}}}") + "owner") or b""
            self.check(
                truth.decode() == token, f"owners says shard {shard} is {token}'s, the shard says {truth}"
            )

    # ---- held against what really ran

    def ran(self, ran: Counter[str]) -> None:
        """Bodies that began, by attempt id: none twice, none that no run knows, and each success was one of them."""
        for attempt, times in ran.items():
            self.check(times == 1, f"{attempt} ran {times} times")
            a = AttemptId.parse(attempt)
            record = self.runs.get((a.dag, a.run))
            if record is not None:
                self.check(
                    a.attempt <= record.last_attempt(a.task),
                    f"{attempt} ran, its run knows {record.last_attempt(a.task)}",
                )
        for (dag, run), record in self.runs.items():
            for index in record.tasks:
                task = codec.decode_record(record.tasks[index])
                if task.state in ("success", "failed") and not record.marked(index):
                    attempt = str(AttemptId(dag, run, index, task.attempt))
                    self.check(attempt in ran, f"{attempt} is {task.state}, but never ran")

    def no_losses(self) -> None:
        """No worker has died: so none was taken to be dead, and no grant was forgotten."""
        for (dag, run), record in self.runs.items():
            lost = {k: v for k, v in record.tries.items() if v.startswith("lost")}
            self.check(not lost, f"run {run} of {dag} has lost {lost}")
