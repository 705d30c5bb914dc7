//! How the agent is linked: what it defines itself of a C library's names comes before what the C library has.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "crt-static") {
        // Parts of the C library that are linked for other names define malloc() and abort(), too.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,muldefs");
    }
}
