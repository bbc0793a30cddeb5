#!/bin/sh
# A walk for newcomers, a minute long: a pipeline that fails, why, the repair, green; then a pool that two teams share.
# In one terminal: redsched up examples/control     In another: sh examples/control/walk.sh
set -u
say() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

rm -f approved.txt
say redsched run start repair --wait
say redsched run explain repair latest
say redsched run logs repair latest check
touch approved.txt
say redsched run clear repair latest check --downstream --dry-run
say redsched run clear repair latest check --downstream --yes
say redsched run watch repair latest
say redsched run show repair latest --history
say redsched run critical-path repair latest
rm -f approved.txt

printf '\n30 runs of a flood, then 6 of an hourly job; both teams want the pool db, which has two slots\n'
i=0; while [ $i -lt 30 ]; do redsched run start flood >/dev/null; i=$((i + 1)); done
i=0; while [ $i -lt 6 ]; do redsched run start hourly >/dev/null; i=$((i + 1)); done
say redsched run explain hourly latest
say redsched pool show db
say redsched run watch hourly latest
say redsched pool show db
say redsched run list --dag flood --state queued --limit 3
