#!/usr/bin/env bash
# Two Dask workers with 280 MiB each: six million orders joined with customers, in partitions that
# the workers keep. Needs python3; installs distributed, pandas and pyarrow from PyPI into
# DIRECTORY/venv. First bare, then with Dask's own limit (workers spill to disk and pause, or are
# restarted; ended after 120 s), then with each worker under `uzswap run`.
. "$(dirname "$0")/compare.sh"
need python3
[ -e "$work/venv/bin/python" ] || python3 -m venv "$work/venv"
export PATH="$work/venv/bin:$PATH"
python -c 'import distributed, pandas, pyarrow' 2> /dev/null || pip install --quiet distributed pandas pyarrow
export DASK_LOGGING__DISTRIBUTED=error
ram=280M

echo "== dask, without a limit" >&2
time WORKER_LIMIT=0 python "$here/join.py" > "$work/dask.bare"
echo "== dask, with a limit of $ram for each worker" >&2
status=0
time WORKER_LIMIT=${ram}iB DASK_LOGGING__DISTRIBUTED=warning timeout 120 python "$here/join.py" > "$work/dask.limited" 2> "$work/dask.errors" || status=$?
echo "   status $status; workers restarted: $(grep -c 'memory budget. Restarting' "$work/dask.errors")" >&2

echo "== dask, each worker under uzswap run --ram $ram" >&2
address=tcp://127.0.0.1:${PORT:-18786}
trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT
dask scheduler --host 127.0.0.1 --port "${address##*:}" --no-dashboard 2> "$work/scheduler.log" &
workers=()
for n in 1 2; do
    # The budget holds the worker's memory, so Dask gets no limit of its own.
    "$uzswap" run --ram $ram --report "$work/worker-$n.json" -- \
        dask worker "$address" --nthreads 1 --memory-limit 0 --no-nanny --no-dashboard 2> "$work/worker-$n.log" &
    workers+=($!)
done
time python "$here/join.py" "$address" > "$work/dask.managed"
# Workers first: a worker that ends at the same time as its scheduler can wait for it forever.
kill -TERM "${workers[@]}"
wait "${workers[@]}" || true
grep -h '^uzswap: peak' "$work"/worker-[12].log >&2
cmp "$work/dask.bare" "$work/dask.managed" && echo "   the same output" >&2
