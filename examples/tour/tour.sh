#!/bin/sh
# Runs a command before each of six jobs that people know: `tour.sh DIRECTORY COMMAND...`; {} in the
# command is the job's name.
#
#   examples/tour/tour.sh jobs uzswap-lab bench program --ram 67% --versus kernel-zswap --
#
# PROGRAMS="pandas java" does only these. PEOPLE=20000, ROWS=200000 and SOURCE=fs/jbd2 make the jobs
# of networkx, pandas and the kernel smaller, for slow machines. What a job needs is fetched into
# the directory once, from crates.io, npm and Debian: syn, TypeScript and RxJS, the kernel's source
# (package linux-source-6.1, with flex, bison, bc and libelf-dev). The Python jobs want networkx and
# pandas. A job that lacks something is left out, and that is said.
set -eu
. "$(dirname "$0")/../try.sh"

if wanted rustc cargo; then
    mkdir -p "$work/syn/src"
    cat > "$work/syn/Cargo.toml" << 'end'
[package]
name = "job"
version = "0.1.0"
edition = "2021"
[dependencies]
syn = { version = "=2.0.119", features = ["full", "extra-traits", "visit", "visit-mut", "fold"] }
[workspace]
end
    : > "$work/syn/src/lib.rs"
    (cd "$work/syn" && cargo build -q)
    try rustc cargo sh -c "cd $work/syn && cargo clean -q -p syn && cargo build -q --offline -j1"
fi
if wanted typescript npm; then
    mkdir -p "$work/ts"
    [ -e "$work/ts/node_modules/rxjs" ] \
        || npm install --prefix "$work/ts" --silent --no-fund typescript@5.9.3 rxjs@7.8.2 > /dev/null
    cat > "$work/ts/tsconfig.json" << 'end'
{ "compilerOptions": { "target": "es2020", "module": "esnext", "moduleResolution": "node", "lib": ["es2020", "dom", "dom.iterable"],
                       "noEmit": true, "strict": true, "types": [] },
  "include": ["node_modules/rxjs/src/**/*.ts"], "exclude": [] }
end
    # Heap sizes are given because V8 otherwise chooses them by the limit of its cgroup, which only
    # the kernel's run has.
    try typescript node node --max-old-space-size=1024 --max-semi-space-size=16 "$work/ts/node_modules/typescript/bin/tsc" -p "$work/ts"
fi
if wanted networkx python3; then
    if python3 -c 'import networkx' 2> /dev/null; then
        try networkx python3 python3 "$here/graph.py" ${PEOPLE:-}
    else
        echo "networkx: skipped, python3 has no networkx" >&2
    fi
fi
if wanted pandas python3; then
    if python3 -c 'import pandas' 2> /dev/null; then
        try pandas python3 python3 "$here/frame.py" ${ROWS:-}
    else
        echo "pandas: skipped, python3 has no pandas" >&2
    fi
fi
if wanted java javac; then
    [ -e "$work/Accounts.class" ] || javac -d "$work" "$here/Accounts.java"
    try java java java -XX:+UseSerialGC -Xmx400m -cp "$work" Accounts
fi
if wanted kernel make; then
    source=/usr/src/linux-source-6.1.tar.xz
    if [ -e "$work/linux-source-6.1" ] || [ -e $source ]; then
        if ! [ -e "$work/linux-source-6.1/.config" ]; then
            tar -C "$work" -xJf $source
            make -s -C "$work/linux-source-6.1" defconfig prepare scripts > /dev/null
        fi
        directory=${SOURCE:-fs/ext4}
        built="$work/linux-source-6.1/$directory"
        try kernel make sh -c "find $built -name '*.o' -delete && make -s -j2 -C $work/linux-source-6.1 $directory/"
    else
        echo "kernel: skipped, there is no $source" >&2
    fi
fi
