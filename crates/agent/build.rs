//! How the agent is linked: what it defines itself of a C library's names comes before what the C
//! library has.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if !variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static") {
        return;
    }
    // Parts of the C library that are linked for other names define malloc() and abort(), too.
    argument("-Wl,-z,muldefs");
    if variable("CARGO_CFG_TARGET_ARCH") == "aarch64" {
        link_position_independent();
    }
}

/// Rust asks for static programs that lie anywhere on x86-64; on aarch64 it asks for ones with a
/// fixed address. The last such option counts, but for the choice of the files that a program
/// begins and ends with, which are named here.
fn link_position_independent() {
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let file = |name: &str| {
        let found = Command::new(&linker).arg(format!("-print-file-name={name}")).output();
        let found = found.unwrap_or_else(|error| panic!("{linker}: {error}"));
        argument(String::from_utf8(found.stdout).expect("a path in UTF-8").trim());
    };
    ["-static-pie", "-nostartfiles"].iter().for_each(|text| argument(text));
    ["rcrt1.o", "crti.o", "crtbeginS.o"].iter().for_each(|name| file(name));
    // What these want comes after them.
    argument("-Wl,--start-group,-lgcc_eh,-lgcc,-lc,--end-group");
    ["crtendS.o", "crtn.o"].iter().for_each(|name| file(name));
}

fn argument(text: &str) {
    println!("cargo::rustc-link-arg-bins={text}");
}
