# For the scripts of this folder, which begin with reading this file. Each runs one job three times:
# without a limit, in a memory cgroup without swap that is too small for it, and in the same cgroup
# under uzswap. Usage: sudo SCRIPT DIRECTORY; the directory keeps what a job needs and prints. The
# program is the uzswap in PATH, or $UZSWAP.
#
# The cgroup is made for the job and removed afterwards. LIMIT=600M sets another size.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${1:?usage: $0 DIRECTORY}"
mkdir -p "$1"
work=$(cd "$1" && pwd)
uzswap=${UZSWAP:-uzswap}
TIMEFORMAT='%R s elapsed, %U s user, %S s system'

# need PROGRAM...: ends the script if a program is missing.
need() {
    local program
    for program in "$@" "$uzswap"; do
        command -v "$program" > /dev/null || { echo "this example needs $program" >&2; exit 1; }
    done
}

# within LIMIT COMMAND...: runs a command in a memory cgroup without swap.
within() (
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        group=/sys/fs/cgroup/uzswap-example-$$ file=memory.max events=memory.events
        echo +memory > /sys/fs/cgroup/cgroup.subtree_control
        mkdir "$group"
        echo 0 > "$group/memory.swap.max" 2> /dev/null || true
    else
        group=/sys/fs/cgroup/memory/uzswap-example-$$ file=memory.limit_in_bytes events=memory.oom_control
        mkdir "$group"
        # 0 in the root group is the kernel's vm.swappiness.
        echo 0 > "$group/memory.swappiness"
    fi
    echo "$1" > "$group/$file"
    shift
    status=0
    { sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@"; } || status=$?
    killed=$(sed -n 's/^oom_kill //p' "$group/$events")
    [ "$killed" = 0 ] || echo "   the kernel killed $killed of the job's processes: out of memory" >&2
    # Processes that the job left behind.
    for pid in $(cat "$group/cgroup.procs"); do kill -KILL "$pid" 2> /dev/null || true; done
    for _ in 1 2 3 4 5; do rmdir "$group" 2> /dev/null && break || sleep 0.5; done
    exit "$status"
)

# compare NAME LIMIT COMMAND...: the three runs. `before`, if a script defines it, runs before each.
compare() {
    local name=$1 limit=${LIMIT:-$2} status
    shift 2
    before
    echo "== $name, without a limit" >&2
    time "$@" > "$work/$name.bare"
    before
    echo "== $name, in $limit" >&2
    status=0
    time within "$limit" "$@" > "$work/$name.limited" 2> "$work/$name.errors" || status=$?
    grep -m 3 -i -E 'out of memory|heap|kill' "$work/$name.errors" >&2 || true
    echo "   status $status" >&2
    before
    echo "== $name, in $limit, under uzswap run --ram auto" >&2
    time within "$limit" "$uzswap" run --ram auto -- "$@" > "$work/$name.managed"
    cmp "$work/$name.bare" "$work/$name.managed" && echo "   the same output" >&2
}
before() { :; }
