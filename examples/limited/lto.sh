#!/usr/bin/env bash
# A link under fat LTO: the last step of building ripgrep, in 500 MiB. Needs cargo. Fetches ripgrep
# and its dependencies from crates.io and compiles them into DIRECTORY once; they are not
# installed elsewhere.
. "$(dirname "$0")/compare.sh"
need cargo
export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
link=(cargo install --quiet --locked --force ripgrep@15.2.0 --root "$work" --target-dir "$work/ripgrep")
[ -e "$work/bin/rg" ] || "${link[@]}"
# Compiles the last crate again, and with it all that goes into the program.
before() { rm -f "$work/bin/rg" "$work"/ripgrep/release/deps/rg-*; }
compare lto 500M sh -c '"$@" && sha256sum < "$0"' "$work/bin/rg" "${link[@]}" --offline
