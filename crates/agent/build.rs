//! Links the agent so that its own definitions of C library names take precedence.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if !variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|feature| feature == "crt-static") {
        return;
    }
    // The linked parts of the C library also define malloc() and abort().
    argument("-Wl,-z,muldefs");
    if variable("CARGO_CFG_TARGET_ARCH") == "aarch64" {
        link_position_independent();
    }
}

/// Rust links static programs position-independent on x86-64, but at a fixed address on aarch64.
/// The linker uses the last such option, but not for the start and end files, which are named here.
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
    // The files above depend on these libraries.
    argument("-Wl,--start-group,-lgcc_eh,-lgcc,-lc,--end-group");
    ["crtendS.o", "crtn.o"].iter().for_each(|name| file(name));
}

fn argument(text: &str) {
    println!("cargo::rustc-link-arg-bins={text}");
}
