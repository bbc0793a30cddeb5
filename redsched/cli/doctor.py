"""`redsched doctor`: is the installation well? `--audit` counts everything again, `--fix` has what differs repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redsched.cli.base import Command, state
from redsched.cli.output import print_json, say
from redsched.errors import RedschedError

if TYPE_CHECKING:
    from redsched.auditing import Findings

SHOWN = 50


@click.command(cls=Command, json=True, short_help="Is the installation well? Counts again, and repairs.")
@click.option(
    "--audit", is_flag=True, help="Count every counter, set, slot, lease and timer again from the runs."
)
@click.option("--fix", is_flag=True, help="With --audit implied: have what differs repaired.")
def doctor(audit: bool, fix: bool) -> None:
    """Check the installation; exit 1 if something is not well.

    --audit looks at everything twice, so that nothing that is under way is taken for an error; it may be run at any time.
    --fix asks the schedulers, who own what is to be repaired; if none is alive, it takes their place for a moment.
    """
    from redsched.doctor import checks

    found = [dict(check) for check in checks(state().settings())]
    if (audit or fix) and found[0]["ok"]:
        found.append(_audit(fix))
    if state().json:
        print_json(found)
    else:
        for check in found:
            _show(check)
    if not all(check["ok"] for check in found):
        raise click.exceptions.Exit(1)


def _audit(fix: bool) -> dict[str, Any]:
    from redsched.scheduler.audit import audit

    try:
        found = audit(state().client().store, fix=fix)
    except RedschedError as error:
        return {"check": "audit", "ok": False, "detail": str(error), "fix": "see the message"}
    return {
        "check": "audit",
        "ok": not found.left,
        "detail": _summary(found),
        "fix": "" if not found.left else "see the message" if fix else "redsched doctor --fix",
        "runs": found.looked,
        "differences": [d.shown() for d in found.left],
        "repaired": [d.shown() for d in found.repaired],
        "not_judged": sorted(found.unsure),
    }


def _summary(found: Findings) -> str:
    parts = [f"{_count(found.looked, 'run')} counted again"]
    if found.repaired:
        parts.append(f"{_count(len(found.repaired), 'difference')} repaired")
    if found.left:
        parts.append(_count(len(found.left), "difference") + (" left" if found.repaired else ""))
    else:
        parts.append("all is well")
    if found.unsure:
        parts.append(
            f"{len(found.unsure)} could not be judged (they change, or nobody applies what was reported)"
        )
    return ", ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _show(check: dict[str, Any]) -> None:
    click.secho("ok    " if check["ok"] else "WRONG ", fg="green" if check["ok"] else "red", nl=False)
    say(f"{check['check']}: {check['detail']}")
    for kind in ("repaired", "differences"):
        for difference in check.get(kind, ())[:SHOWN]:
            say(f"      {'repaired ' if kind == 'repaired' else ''}{_difference(difference)}")
        if (more := len(check.get(kind, ())) - SHOWN) > 0:
            say(f"      and {more} more (--json names all)")
    if not check["ok"] and check["fix"]:
        say(f"      {check['fix']}")


def _difference(d: dict[str, Any]) -> str:
    what = "/".join(str(d[k]) for k in ("dag", "run", "task", "attempt") if d[k])
    return f"{d['cell']} {d['key']}{f' ({what})' if what else ''}: {d['there']}, should be {d['should']}: {d['means']}"
