#!/bin/sh
# Runs a command before each of about fifteen programs: `each.sh DIRECTORY COMMAND...`. In the
# command, {} stands for the program's name; its words have no spaces. Programs that are not
# installed are left out, and that is said.
#
#   examples/programs/each.sh traces uzswap-lab trace record -o traces/{}.trace --
#   examples/programs/each.sh traces uzswap-lab bench program --
#
# PROGRAMS="python perl" has only these run. The directory is for what they need: input, compiled
# classes.
set -eu
. "$(dirname "$0")/../try.sh"

try python python3 python3 "$here/dict.py"
# Heap sizes are given: V8 otherwise chooses them by the limit of its cgroup.
try node node node --max-old-space-size=1024 --max-semi-space-size=16 "$here/map.js"
try ruby ruby ruby "$here/objects.rb"
try perl perl perl "$here/hash.pl"
try gcc g++ g++ -std=c++17 -O1 -S -o /dev/null "$here/templates.cc"
if command -v javac > /dev/null; then
    [ -e "$work/Tables.class" ] || javac -d "$work" "$here/Tables.java"
    try java java java -XX:+UseSerialGC -Xmx160m -Xshare:off -cp "$work" Tables
fi
try sqlite sqlite3 sqlite3 :memory: -cmd ".read $here/index.sql" .quit
if command -v perl > /dev/null; then
    [ -e "$work/lines" ] || perl -e 'srand 7; print int(rand 1e15), " line $_\n" for 1 .. 800000' > "$work/lines"
    try sort sort sort -S 90M --parallel=1 "$work/lines" -o /dev/null
fi
if command -v go > /dev/null; then
    [ -e "$work/tables" ] || (cd "$work" && cp "$here/tables.go" . && GOCACHE="$work/cache" go build -o tables tables.go)
    try go "$work/tables" "$work/tables"
fi
if command -v rustc > /dev/null; then
    try rustc rustc rustc --edition 2021 --crate-type lib -O --emit metadata,obj -o "$work/rust.o" "$here/instances.rs"
fi
try php php php -d memory_limit=2G "$here/collect.php"
if command -v ocamlopt > /dev/null; then
    [ -e "$work/trees" ] || (cd "$work" && cp "$here/trees.ml" . && ocamlopt -o trees trees.ml)
    try ocaml "$work/trees" "$work/trees"
fi
for job in numpy:arrays sklearn:forest; do
    name=${job%:*} file=${job#*:}
    if python3 -c "import $name" 2> /dev/null; then
        try "$name" python3 python3 "$here/$file.py"
    else
        echo "$name: skipped, python3 has no $name" >&2
    fi
done
