//! Link options of the shared object.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The number changes when programs must be compiled again.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuzswap.so.0");
    // Its threads run to the end of the process, so dlclose() must not unmap their code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
