//! Skips that are visible, and random numbers.
//!
//! A test that cannot run on this machine calls [`skip!`] with its need and a reason, and returns.
//! The skip is printed past libtest's capture and recorded in `target/skipped`, one line
//! each: need, test, reason, separated by tabs. `.ci/run` empties that file before the tests and
//! prints the counts by need after them.
//!
//! `UZSWAP_REQUIRE` names the needs that this machine fulfils, separated by commas, or `all`. A
//! skip for a required need fails the test.
//!
//! ```
//! if !std::path::Path::new("/dev/userfaultfd").exists() {
//!     return testkit::skip!("userfaultfd", "there is no /dev/userfaultfd");
//! }
//! ```
//!
//! | need | fulfilled by |
//! |---|---|
//! | `userfaultfd` | the right to open a userfaultfd |
//! | `root` | user 0, who may change users and make files of others |
//! | `capability` | CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, as the reason says |
//! | `trace` | ptrace(2) on children |
//! | `mlock` | the right to lock memory |
//! | `namespace` | mount, process and user namespaces |
//! | `cgroup` | memory control groups that can be made here |
//! | `disk` | `/var/tmp` and the target folder on a disk; loop devices |
//! | `swap` | a kernel with swap, and the devices to serve it |
//! | `kernel` | a call or driver of newer kernels, or a kernel instead of an emulator |
//! | `cpu` | vector and device instructions |
//! | `tool` | an installed program or library, named in the reason |
//! | `container` | Podman that can start containers |
//! | `build` | the whole repository, or a build with assertions |
//! | `request` | a variable that asks for a long test |

use std::io::Write;
use std::path::{Path, PathBuf};

/// The needs that tests may name.
pub const NEEDS: [&str; 15] = [
    "capability",
    "userfaultfd",
    "root",
    "trace",
    "mlock",
    "namespace",
    "cgroup",
    "disk",
    "swap",
    "kernel",
    "cpu",
    "tool",
    "container",
    "build",
    "request",
];

/// Random numbers (xorshift64*), the same at every run.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % limit as u64) as usize
    }
}

/// Records that a test, or a part of it, cannot run here: the need, then a reason as for `format!`.
///
/// # Panics
///
/// If `UZSWAP_REQUIRE` has the need.
#[macro_export]
macro_rules! skip {
    ($need:expr, $($reason:tt)+) => {
        $crate::skip($need, ::std::module_path!(), &::std::format!($($reason)+))
    };
}

/// Implements [`skip!`].
///
/// # Panics
/// If `UZSWAP_REQUIRE` has the need, or [`NEEDS`] does not.
pub fn skip(need: &str, module: &str, reason: &str) {
    assert!(NEEDS.contains(&need), "{need:?} is not among testkit::NEEDS");
    let reason = reason.trim().replace(['\n', '\t'], " ");
    let required = std::env::var("UZSWAP_REQUIRE").unwrap_or_default();
    assert!(
        !is_required(need, &required),
        "UZSWAP_REQUIRE={required} forbids this skip for {need}: {reason}"
    );
    let thread = std::thread::current();
    let test = match thread.name() {
        Some("main") | None => module.to_owned(),
        Some(name) => format!("{} {name}", module.split("::").next().unwrap_or(module)),
    };
    // libtest captures only print! and eprint!.
    let _ = std::io::stderr().write_all(format!("skipped ({need}): {test}: {reason}\n").as_bytes());
    if let Some(path) = record() {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // One write, so that lines of several processes do not mix.
        let line = format!("{need}\t{test}\t{reason}\n");
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

fn is_required(need: &str, required: &str) -> bool {
    required.split(',').map(str::trim).any(|one| one == need || one == "all" && need != "request")
}

fn record() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(default, PathBuf::from);
    folder.is_dir().then(|| folder.join("skipped"))
}

/// Copies a program that a test starts. Uses a separate process: while a file is open for writing
/// here, another test's thread may fork, and as long as its child has that descriptor the copy
/// cannot be started ("Text file busy").
///
/// # Panics
/// If the program cannot be copied.
pub fn copy_program(from: impl AsRef<std::path::Path>, to: impl AsRef<std::path::Path>) {
    let mut copy = std::process::Command::new("cp");
    let status = copy.arg("--").arg(from.as_ref()).arg(to.as_ref()).status();
    assert!(status.is_ok_and(|status| status.success()), "{copy:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_needs_are_found_in_the_list() {
        assert!(is_required("root", "userfaultfd,root"));
        assert!(is_required("root", "userfaultfd, root"));
        assert!(is_required("disk", "all"));
        assert!(!is_required("request", "all"), "long tests run on request only");
        assert!(!is_required("root", "userfaultfd"));
        assert!(!is_required("root", ""));
    }

    #[test]
    fn the_record_is_in_the_target_folder() {
        let record = record().expect("tests run from cargo's target folder");
        assert!(record.parent().unwrap().join("debug").is_dir(), "{}", record.display());
    }

    #[test]
    #[should_panic(expected = "not among testkit::NEEDS")]
    fn unknown_needs_are_refused() {
        skip!("a miracle", "no reason");
    }
}
