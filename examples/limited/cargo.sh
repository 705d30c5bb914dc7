#!/usr/bin/env bash
# `cargo build -j4` of k8s-openapi, the types of the Kubernetes API, in 450 MiB. Needs cargo;
# fetches k8s-openapi and what it depends on from crates.io and compiles them in DIRECTORY.
. "$(dirname "$0")/compare.sh"
need cargo
mkdir -p "$work/k8s/src"
cat > "$work/k8s/Cargo.toml" << 'end'
[package]
name = "job"
version = "0.1.0"
edition = "2021"
[dependencies]
k8s-openapi = { version = "=0.25.0", features = ["latest"] }
[workspace]
end
: > "$work/k8s/src/lib.rs"
cd "$work/k8s"
cargo fetch --quiet
before() { rm -rf "$work/k8s/target"; }
# Two builds of this crate give the same bytes.
compare cargo 450M sh -c 'cargo build --quiet --offline -j4 && sha256sum target/debug/deps/*k8s_openapi*.rlib'
