"""Where Lua and Python decide the same thing, they must agree on every input that can occur."""

from __future__ import annotations

import json
from itertools import product

import pytest

from redsched.retry import retry_delay_ms
from redsched.rules import decide
from redsched.states import TRIGGER_RULES
from redsched.store.scripts import Scripts, all_scripts, expand, lua_root

from .harness import Engine

WORD = {"r": "run", "k": "skipped", "u": "upstream_failed", "": "wait"}


def lib(name: str) -> str:
    return "".join(expand(f"lib/{name}.lua", lua_root(), set()))


def test_every_rule_decides_the_same_in_both_languages(engine: Engine) -> None:
    script = (
        lib("rules")
        + """
        local out = {}
        for i = 1, #ARGV, 5 do
          out[#out + 1] = rules.decide[ARGV[i]](tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])) or ''
        end
        return out"""
    )
    cases = [
        (rule, n, s, f, k)
        for rule in TRIGGER_RULES
        for n in range(1, 5)
        for s, f, k in product(range(n + 1), repeat=3)
        if s + f + k <= n
    ]
    args = [x for rule, *counts in cases for x in (TRIGGER_RULES[rule], *counts)]
    answers = engine.store.client.eval(script, 0, *args)
    for (rule, n, s, f, k), answer in zip(cases, answers, strict=True):
        assert WORD[answer.decode()] == decide(rule, n, s, f, k), (rule, n, s, f, k)


def test_retry_delays_are_the_same_in_both_languages(engine: Engine) -> None:
    script = (
        lib("retry")
        + """
        local out = {}
        for _, text in ipairs(ARGV) do
          local t = cjson.decode(text)
          out[#out + 1] = string.format('%.0f', retry.delay_ms(t, t.failures, t.seed))
        end
        return out"""
    )
    grid = product((0, 1, 500, 300_000), (1, 1.5, 2, 100), (0, 3_600_000), (0, 0.1, 1), (1, 2, 3, 10, 2000))
    cases = [
        {
            "delay": d,
            "backoff": b,
            "max_delay": m,
            "jitter": j,
            "failures": n,
            "seed": f"r/{n}/{d}",
        }
        for d, b, m, j, n in grid
    ]
    answers = engine.store.client.eval(script, 0, *map(json.dumps, cases))
    for c, answer in zip(cases, answers, strict=True):
        expect = retry_delay_ms(
            c["delay"], c["backoff"], c["max_delay"], c["jitter"], c["failures"], c["seed"]
        )
        assert abs(int(answer) - expect) <= 1, c


@pytest.mark.parametrize("name", sorted(all_scripts()))
def test_a_scripts_header_says_everything(name: str) -> None:
    text = (lua_root() / f"{name}.lua").read_text()
    for part in ("cell", "keys", "args", "returns", "errors", "cost"):
        assert f"-- {part}:" in text, part
    assert all_scripts()[name].cell == name.partition("/")[0]


def test_a_flushed_script_is_loaded_and_said_again(engine: Engine) -> None:
    engine.register("d", {"a": {}})
    engine.store.client.function_flush()
    engine.client.trigger("d")
    engine.store.client.function_flush()
    engine.settle()
    assert engine.client.run("d", "latest")["state"] == "success"


def test_many_calls_tell_refusals_from_answers(engine: Engine) -> None:
    scripts = Scripts(engine.store.client)
    keys = engine.store.shard.keys(0, "owner", "meta", "inbox", "prefix")
    call = ("shard/advance", keys, ("nobody:1", 10))
    release = ("shard/release", engine.store.shard.keys(0, "owner"), ("nobody:1",))
    refused, answer = scripts.many([call, release])
    assert type(refused).__name__ == "Fenced"
    assert answer == 0
