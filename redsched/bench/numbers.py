"""What each number means, in a sentence: shown beside it, and held complete by a test."""

from __future__ import annotations

from typing import Any, Final

# name -> (unit, meaning)
MEANING: Final[dict[str, tuple[str, str]]] = {
    "tasks_per_s": ("/s", "from the first trigger (flat: from resume) to the end of the last run"),
    "share_of_evalsha": ("%", "tasks against the server's limit below"),
    "evalsha_per_s": ("/s", "the server's limit: a tiny script, pipelined by 100, before and after"),
    "drain_tasks_per_s": ("/s", "the same runs, all made before: from resume to the end of the last"),
    "drain_per_s": ("/s", "bodies a second, without the first tenth"),
    "created_per_s": ("/s", "runs made while nothing else happens"),
    "created_with_drain_per_s": ("/s", "runs made while others run"),
    "waiting_created_per_s": ("/s", "runs made until all of them wait"),
    "script_us_per_task": ("µs", "Redis' time in scripts"),
    "redis_us_per_task": ("µs", "Redis' CPU in all, network included"),
    "script_calls_per_task": ("", "scripts called"),
    "scheduler_us_per_task": ("µs", "the schedulers' CPU"),
    "worker_us_per_task": ("µs", "the workers' CPU, bodies included"),
    "bytes_per_run": ("B", "what a run leaves once it has ended and is packed"),
    "bytes_per_new_run": ("B", "a run whose first task is ready"),
    "bytes_per_waiting_run": ("B", "a run that waits for room in its DAG"),
    "bytes_per_live_run": ("B", "a run with 7 of its 20 tasks done"),
    "hop_ms_p50": ("ms", "from one body to the next"),
    "hop_ms_p90": ("ms", ""),
    "hop_ms_p99": ("ms", ""),
    "trigger_ms_p50": ("ms", "from the call of trigger to the first body"),
    "cpu_percent": ("% of a core", "schedulers and workers"),
    "scheduler_cpu_percent": ("% of a core", ""),
    "worker_cpu_percent": ("% of a core", ""),
    "redis_cpu_percent": ("% of a core", "the server"),
    "commands_per_s": ("/s", "commands run by the server, those inside scripts included"),
    "sent_per_s": ("/s", "commands sent by clients"),
    "tasks_per_s_empty": ("/s", "the same before the others came"),
    "crowd_vs_empty": ("", "1: those that wait cost nothing"),
    "last_root_queued_s": ("s", "from the instant until the first task of the last run is queued"),
    "runs_per_s": ("/s", "runs made by the schedulers until then"),
    "registered_per_s": ("/s", "DAGs"),
    "script_us_per_run": ("µs", "Redis' time in scripts"),
    "redis_us_per_run": ("µs", "Redis' CPU in all"),
    "scheduler_us_per_run": ("µs", "the schedulers' CPU"),
    "worker_us_per_run": ("µs", "the workers' CPU"),
    "bystander_ms_p50": ("ms", "another team's run meanwhile, from its trigger to its body"),
    "bystander_ms_max": ("ms", ""),
    "explain_ms_p50": ("ms", "the whole answer"),
    "explain_ms_max": ("ms", ""),
    "explained": ("", "tasks in the answer"),
    **{
        f"{shape}{what}": (unit, meaning)
        for shape in ("wide", "deep", "joined")
        for what, unit, meaning in (
            ("_s", "s", "one run"),
            ("_longest_script_ms", "ms", "the longest that a script held the server"),
            ("_clear_s", "s", "all of it cleared"),
            ("_clear_longest_script_ms", "ms", "the longest that a script held the server"),
        )
    },
    "dags": ("", ""),
    "longest_script_ms": ("ms", "the longest that a script held the server"),
    "xargs_per_s": ("/s", "the same commands by xargs -P"),
    "vs_xargs": ("%", "against xargs"),
    "lost": ("", "tasks that never ran"),
    "doubled": ("", "tasks that ran again, or should not have run"),
    "disordered": ("", "tasks that ran before something they need"),
    "failed_runs": ("", "runs that did not end in success"),
    "runs": ("", ""),
    "tasks": ("", ""),
    "hops": ("", ""),
    "waiting": ("", "runs that wait"),
    "at_once": ("", "commands at a time"),
    "seconds": ("s", ""),
}


def shown(name: str, value: Any) -> str:
    """The value with its unit: `12,345 /s`, `0.61 ms`, `6.2 %`."""
    unit = MEANING[name][0]
    if isinstance(value, float):
        value = value * 100 if name in ("share_of_evalsha", "vs_xargs") else value
        digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
        text = f"{value:,.{digits}f}"
    else:
        text = f"{value:,}"
    return f"{text} {unit}".rstrip()
