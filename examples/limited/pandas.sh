#!/usr/bin/env bash
# pandas on a CI runner with 7 GB, at a quarter of its size: 16 million rows joined, grouped and
# sorted in 1750 MiB. Needs python3; installs pandas from PyPI into DIRECTORY/venv.
# The whole size wants some 9 GB: ROWS=64000000 LIMIT=7000M.
. "$(dirname "$0")/compare.sh"
need python3
[ -e "$work/venv/bin/python" ] || python3 -m venv "$work/venv"
"$work/venv/bin/python" -c 'import pandas' 2> /dev/null || "$work/venv/bin/pip" install --quiet pandas
compare pandas 1750M "$work/venv/bin/python" "$here/../tour/frame.py" "${ROWS:-16000000}"
