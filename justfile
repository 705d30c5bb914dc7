# The commands that people need, for `just` (https://just.systems). CONTRIBUTING.md says more.

# Lists these commands.
default:
    @just --list

# Builds and runs README's job.
try:
    cargo run --release -- run --ram 190M -- perl examples/concordance.pl

# Checks types alone, without the object that programs load.
check:
    UZSWAP_NO_OBJECT=1 cargo check --workspace --all-targets

# Formats, lints, and checks words, widths and links.
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings
    cargo clippy -p uzswap -p uzswap-agent -- -D warnings
    cargo test -p uzswap-testkit --test language

# Tests one package: just test uzswap-pager reclaim
test package *filter:
    cargo test -p {{package}} {{filter}}

# Tests one file of the end-to-end tests: just end-to-end forks
end-to-end file *filter:
    cargo test -p uzswap --test {{file}} {{filter}}

# Interleavings of the store and of the pager.
interleavings:
    cargo test -p uzswap-zswap --features shuttle --test interleavings
    cargo test -p uzswap-address-space --features shuttle --lib interleavings

# Installs what the tests run; needs root.
setup:
    .ci/setup

# All that must pass before a change is taken: up to an hour.
ci:
    .ci/run

# Opens the documentation of the crates, private items included.
doc:
    cargo doc --workspace --exclude uzswap --no-deps --document-private-items --open
