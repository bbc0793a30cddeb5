#!/bin/sh
# A walk through time, half a minute long: fire times around both clock changes, a backfill with its plan, paused and resumed.
# In one terminal: redsched up examples/nightly     In another: sh examples/nightly/walk.sh
set -u
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

say redsched dag next nightly --from 2026-03-27 --to 2026-03-31
say redsched dag next nightly --from 2026-10-23 --to 2026-10-28
say redsched backfill start nightly --from 2026-03-01 --to 2026-03-31 --dry-run
id=$(redsched backfill start nightly --from 2026-03-01 --to 2026-03-31 --max-active 2 --json | sed -n 's/.*"backfill": *"\([^"]*\)".*/\1/p')
sleep 1
say redsched backfill pause "$id"
say redsched backfill show "$id"
say redsched backfill start nightly --from 2026-03-31 --to 2026-04-02
say redsched backfill resume "$id"
say redsched backfill show "$id" --wait
say redsched run list --dag nightly --limit 5
say redsched run logs nightly latest count
