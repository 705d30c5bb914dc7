//! Rows on the kernel's version, page sizes, huge pages, the cgroup's limit and the CPU.

use std::fs;

use pagecodec::Isa;
use sys::userfaultfd::{feature, Userfaultfd};

use super::row::Row;
use crate::size::{cgroup_limit_bytes, Size};

pub fn rows() -> Vec<Row> {
    let page_size = sys::kernel_page_bytes();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let enabled = |of: &str| fs::read_to_string(format!("{HUGE_PAGES}/{of}enabled")).ok();
    let fix = "use a kernel that is built with pages of 4 KiB";
    vec![
        Row::needed("pages of 4 KiB", page_size == sys::PAGE_SIZE, format!("{page_size} bytes"), fix),
        kernel(release.trim(), Userfaultfd::features().unwrap_or(0)),
        huge_pages(enabled("").as_deref(), &sizes(|size| enabled(&format!("hugepages-{size}kB/")))),
        cgroup(cgroup_limit_bytes()),
        cpu(&Isa::available().collect::<Vec<_>>(), Isa::best()),
    ]
}

const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// Advice for a kernel that lacks a feature. `UFFDIO_MOVE` came to aarch64 later than to x86-64.
pub const UPGRADE: &str =
    if cfg!(target_arch = "aarch64") { "install Linux 6.10 or later" } else { "install Linux 6.8 or later" };

/// Known features decide: some distributions backport them to older kernels.
fn kernel(release: &str, features: u64) -> Row {
    let (name, first) = match cfg!(target_arch = "aarch64") {
        true => ("Linux 6.10 or later", (6, 10)),
        false => ("Linux 6.8 or later", (6, 8)),
    };
    let is_new = sys::kernel::version_of(release) >= first || features & feature::MOVING == feature::MOVING;
    Row::needed(name, is_new, format!("Linux {release}"), UPGRADE)
}

/// Huge page sizes that are not off, smallest first.
fn sizes(read: impl Fn(u32) -> Option<String>) -> Vec<(u32, String)> {
    (3..=14)
        .filter_map(|shift| {
            let size = 1 << shift;
            let chosen = chosen(&read(size)?)?;
            (chosen != "never").then_some((size, chosen))
        })
        .collect()
}

/// Returns the word in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn huge_pages(enabled: Option<&str>, sizes: &[(u32, String)]) -> Row {
    let name = "transparent huge pages";
    let fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
    let Some(all) = enabled.and_then(chosen) else {
        let fix = "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE";
        return Row::known(name, false, "not in this kernel", fix);
    };
    let sizes: Vec<_> = sizes.iter().map(|(size, chosen)| format!("{size} KiB {chosen}")).collect();
    let detail = if sizes.is_empty() { all.clone() } else { format!("{all} ({})", sizes.join(", ")) };
    Row::known(name, all != "never", detail, fix)
}

fn cgroup(limit: Option<u64>) -> Row {
    let name = "memory limit of the cgroup";
    let fix = "not needed; systemd-run --scope -p MemoryMax=2G COMMAND sets one";
    let detail = match limit {
        Some(bytes) => format!("{}; `--ram auto` stays below it", Size::from(bytes)),
        None => "none; `--ram auto` takes nine tenths of what is available".to_owned(),
    };
    Row::known(name, limit.is_some(), detail, fix)
}

fn cpu(available: &[Isa], best: Isa) -> Row {
    let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
    let detail = format!("pages are coded with {best} (this CPU runs {})", names.join(", "));
    let fix = "no command: only a CPU with AVX2 is faster; the results are the same";
    Row::known("vector instructions", best != Isa::Portable, detail, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (release, ok) in [
            ("6.18.44-fc-v509", true),
            ("6.8.0-45-generic", cfg!(not(target_arch = "aarch64"))),
            ("6.8-rc1", cfg!(not(target_arch = "aarch64"))),
            ("6.10.3", true),
            ("7.0.1", true),
            ("6.7.12", false),
            ("5.15.0", false),
            ("", false),
        ] {
            assert_eq!(kernel(release, 0).ok, ok, "{release}");
        }
        assert!(kernel("5.14.0-503.el9", feature::MOVING).ok);
    }

    #[test]
    fn huge_page_settings_are_told() {
        let read = |size| match size {
            64 => Some("always [inherit] madvise never\n".to_owned()),
            2048 => Some("always inherit madvise [never]".to_owned()),
            _ => None,
        };
        let row = huge_pages(Some("always [madvise] never"), &sizes(read));
        assert!(row.ok && row.detail == "madvise (64 KiB inherit)", "{row:?}");
        let row = huge_pages(Some("always madvise [never]"), &[]);
        assert!(!row.ok && row.fix.unwrap().contains("echo madvise"));
        assert!(!huge_pages(None, &[]).ok);
    }

    #[test]
    fn the_machine_is_good_to_know() {
        let rows = rows();
        assert!(rows.iter().filter(|row| row.needed).count() == 2, "pages and kernel: {rows:?}");
        assert!(rows.iter().all(|row| row.ok || row.fix.is_some()));
        assert!(cgroup(Some(1 << 30)).ok && !cgroup(None).ok);
        assert!(!cpu(&[Isa::Portable], Isa::Portable).ok);
    }
}
