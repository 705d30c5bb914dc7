#!/usr/bin/env bash
# A local Ray cluster with two actors, in 560 MiB; they and Ray's own processes share the budget.
# Needs python3; installs ray and numpy from PyPI into DIRECTORY/venv.
. "$(dirname "$0")/compare.sh"
need python3
[ -e "$work/venv/bin/python" ] || python3 -m venv "$work/venv"
"$work/venv/bin/python" -c 'import ray, numpy' 2> /dev/null || "$work/venv/bin/pip" install --quiet ray numpy
compare ray 560M timeout 120 "$work/venv/bin/python" "$here/actors.py"
