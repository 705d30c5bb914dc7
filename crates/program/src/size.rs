//! Sizes as people write them: `4096`, `512M`, `2GiB`, `50%`.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result};

/// `K` and `KiB` are both 1024, in any case.
const UNITS: parse_size::Config = parse_size::Config::new().with_binary();

const MEMINFO: &str = "/proc/meminfo";

/// An amount of memory as written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Bytes.
    Bytes(u64),
    /// A share of the memory of the machine, or of the cgroup if that is less.
    Percent(f64),
}

/// Why a size is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSize {
    /// The text is not a number with a unit.
    #[error(
        "{0:?} is not a size: write bytes, a number with K, M, G or T (powers of 1024), or a percentage; for example \
         512M, 1.5G or 50%"
    )]
    Form(String),
    /// A share of 0 or of more than 100 %.
    #[error("{0:?} is not a share of the memory: write a percentage above 0 and up to 100, or a size such as 512M")]
    Share(String),
    /// More bytes than 64 bits can count.
    #[error("{0:?} is more than any machine can address: write a size such as 512M or 1.5G")]
    Huge(String),
}

/// Parses a size. An error names the valid forms.
pub fn parse(text: &str) -> Result<Amount, BadSize> {
    let bad = || BadSize::Form(text.to_owned());
    let trimmed = text.trim();
    if let Some(number) = trimmed.strip_suffix('%') {
        let percent: f64 = number.trim().parse().map_err(|_| bad())?;
        let is_share = percent > 0.0 && percent <= 100.0;
        return if is_share { Ok(Amount::Percent(percent)) } else { Err(BadSize::Share(text.to_owned())) };
    }
    UNITS.parse_size(trimmed).map(Amount::Bytes).map_err(|error| match error {
        parse_size::Error::PosOverflow => BadSize::Huge(text.to_owned()),
        _ => bad(),
    })
}

/// Parses an option's text to bytes. An error names the option.
pub fn of_option(option: &str, text: &str) -> Result<u64> {
    parse(text).map_err(anyhow::Error::from).and_then(Amount::bytes).with_context(|| option.to_owned())
}

/// As [`of_option`], rounded down to whole pages.
pub fn in_pages(option: &str, text: &str) -> Result<u64> {
    Ok(of_option(option, text)? / 4096 * 4096)
}

/// Returns a warning if a budget exceeds the machine's or the cgroup's memory: pages are not
/// compressed before that memory is full.
pub fn beyond_machine(budget_bytes: u64) -> Option<String> {
    let machine = machine_bytes().ok()?;
    let (whole, owner) = match cgroup_limit_bytes().filter(|limit| *limit < machine) {
        Some(limit) => (limit, "the memory cgroup"),
        None => (machine, "this machine"),
    };
    let allowed = Size::from(whole);
    (budget_bytes > whole)
        .then(|| format!("{owner} has {allowed}, so the program can run out of memory below its budget"))
}

impl Amount {
    /// Converts to bytes on this machine. Fails for a share if the machine's memory cannot be read.
    pub fn bytes(self) -> Result<u64> {
        match self {
            Amount::Bytes(bytes) => Ok(bytes),
            Amount::Percent(percent) => {
                let machine = machine_bytes()?;
                let whole = cgroup_limit_bytes().map_or(machine, |limit| limit.min(machine));
                Ok((whole as f64 * percent / 100.0) as u64)
            }
        }
    }
}

/// Memory of a cgroup that `--ram auto` leaves free, for memory that is not anonymous.
fn margin_bytes(limit: u64) -> u64 {
    (limit / 8).max(32 << 20)
}

/// The value of `--ram auto`: the cgroup's limit less a margin for non-anonymous memory or, without
/// a limit, nine tenths of the available memory.
pub fn automatic_ram_bytes() -> Result<u64> {
    if let Some(limit) = cgroup_limit_bytes().filter(|limit| *limit < machine_bytes().unwrap_or(u64::MAX)) {
        return below_limit(limit).with_context(|| too_small(limit));
    }
    Ok(meminfo_bytes(Path::new(MEMINFO), "MemAvailable:")? / 10 * 9)
}

/// Returns the budget that fits a cgroup's limit; `None` if the margin is at least half of it.
pub fn below_limit(limit: u64) -> Option<u64> {
    let margin = margin_bytes(limit);
    (limit > margin * 2).then(|| limit - margin)
}

fn too_small(limit: u64) -> String {
    format!(
        "--ram auto keeps {} of the cgroup's {} free for memory that is not paged, which leaves too little: give a size, \
         such as --ram {}, or raise the cgroup's limit above {}",
        Size::from(margin_bytes(limit)),
        Size::from(limit),
        as_option((limit / 2).max(16 << 20)),
        Size::from(64 << 20),
    )
}

/// Writes a size as options take it, rounded up to MiB: `304M`.
pub fn as_option(bytes: u64) -> String {
    format!("{}M", bytes.div_ceil(1 << 20))
}

/// Returns the excess over a budget that is not worth a message.
pub fn tolerated_excess(budget_bytes: u64) -> u64 {
    budget_bytes / 32 + (8 << 20)
}

/// Returns the machine's memory.
pub fn machine_bytes() -> Result<u64> {
    meminfo_bytes(Path::new(MEMINFO), "MemTotal:")
}

/// Returns a field of a file in the format of /proc/meminfo.
pub fn meminfo_bytes(file: &Path, field: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let bytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024));
    bytes.with_context(|| format!("{} has no {field}", file.display()))
}

/// Returns the lowest memory limit of the cgroup and its ancestors, version 2 or 1.
pub fn cgroup_limit_bytes() -> Option<u64> {
    let texts = cgroup_texts("memory.max", "memory.limit_in_bytes");
    let least = texts.iter().filter_map(|text| text.trim().parse::<u64>().ok()).min();
    // Version 1 writes a number near 2^63 for no limit.
    least.filter(|limit| *limit < 1 << 60)
}

/// Returns the memory that a process can still take: the machine's or, if that is less, its
/// cgroup's, where files that were not used lately count as free.
pub fn available_bytes(pid: u32) -> u64 {
    let machine = meminfo_bytes(Path::new(MEMINFO), "MemAvailable:").unwrap_or(u64::MAX);
    let texts = |unified, legacy| cgroup_texts_of(&pid.to_string(), unified, legacy);
    let limits = texts("memory.max", "memory.limit_in_bytes");
    let uses = texts("memory.current", "memory.usage_in_bytes");
    let files = texts("memory.stat", "memory.stat").into_iter().map(|text| {
        let line = |name| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        line("total_inactive_file ").or_else(|| line("inactive_file ")).unwrap_or(0)
    });
    let number = |text: &String| text.trim().parse::<u64>().ok();
    let groups = limits.iter().map(number).zip(uses.iter().map(number)).zip(files);
    let left =
        groups.filter_map(|((limit, used), files)| Some(limit?.saturating_sub(used?.saturating_sub(files))));
    left.min().unwrap_or(u64::MAX).min(machine)
}

/// Reads a file of the memory cgroup that counts and of each ancestor, innermost first; the file
/// has a name of version 2 and one of version 1.
pub fn cgroup_texts(unified: &str, legacy: &str) -> Vec<String> {
    let subject = SUBJECT.get().map_or("self".to_owned(), u32::to_string);
    cgroup_texts_of(&subject, unified, legacy)
}

/// The process whose cgroup counts, if it is not this one.
static SUBJECT: OnceLock<u32> = OnceLock::new();

/// Makes the cgroup of another process count from now on, in place of this one's.
pub fn count_for(pid: u32) {
    let _ = SUBJECT.set(pid);
}

fn cgroup_texts_of(pid: &str, unified: &str, legacy: &str) -> Vec<String> {
    let membership = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut texts = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (roots, file): (&[&str], &str) = if number == "0" && controllers.is_empty() {
            (&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], unified)
        } else if controllers.split(',').any(|name| name == "memory") {
            (&["/sys/fs/cgroup/memory"], legacy)
        } else {
            continue;
        };
        let path = path.trim_end_matches('/');
        for group in Path::new(if path.is_empty() { "/" } else { path }).ancestors() {
            let group = group.to_string_lossy();
            let read = |root: &&str| {
                fs::read_to_string(format!("{root}{}/{file}", group.trim_end_matches('/'))).ok()
            };
            texts.extend(roots.iter().filter_map(read));
        }
    }
    texts
}

/// Random bits for names that differ between runs.
pub fn random_u32() -> u32 {
    let mut bytes = [0u8; 4];
    let _ = sys::files::random(&mut bytes);
    u32::from_ne_bytes(bytes)
}

/// A number of bytes, displayed for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

impl From<u64> for Size {
    fn from(bytes: u64) -> Self {
        Size(bytes)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let (shift, unit) = match bytes {
            0..0x400 => return f.pad(&format!("{bytes} B")),
            0x400..0x10_0000 => (10, "KiB"),
            0x10_0000..0x4000_0000 => (20, "MiB"),
            0x4000_0000..0x100_0000_0000 => (30, "GiB"),
            _ => (40, "TiB"),
        };
        let value = bytes as f64 / (1u64 << shift) as f64;
        let digits = if value < 10.0 && !bytes.is_multiple_of(1 << shift) { 1 } else { 0 };
        f.pad(&format!("{value:.digits$} {unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_as_written() {
        for (text, bytes) in [
            ("4096", 4096),
            ("10K", 10 << 10),
            ("512m", 512 << 20),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("2 gb", 2 << 30),
            ("1T", 1 << 40),
            ("1.5G", 3 << 29),
            (" 7B ", 7),
        ] {
            assert_eq!(parse(text), Ok(Amount::Bytes(bytes)), "{text}");
        }
        assert_eq!(parse("50%"), Ok(Amount::Percent(50.0)));
        for text in ["", "12Q", "G", "-1", "1..5G", "0%", "101%", "ninety%", "99999999999999T"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("512M"), "{error}");
        }
        for (text, error) in [
            ("200%", BadSize::Share("200%".into())),
            ("0%", BadSize::Share("0%".into())),
            ("99999999999999T", BadSize::Huge("99999999999999T".into())),
            ("ninety", BadSize::Form("ninety".into())),
        ] {
            assert_eq!(parse(text), Err(error));
        }
    }

    #[test]
    fn a_budget_beyond_the_machine_is_noticed() {
        let machine = machine_bytes().unwrap();
        assert_eq!(beyond_machine(1 << 20), None);
        assert!(beyond_machine(machine * 2).unwrap().contains("has"));
    }

    #[test]
    fn a_budget_leaves_a_margin_in_its_cgroup() {
        assert_eq!(below_limit(512 << 20), Some(448 << 20));
        assert_eq!(below_limit(64 << 20), None);
        let message = too_small(48 << 20);
        assert!(message.starts_with("--ram auto keeps 32 MiB of the cgroup's 48 MiB"), "{message}");
        assert!(message.contains("--ram 24M"), "{message}");
        assert_eq!(parse(&as_option((304 << 20) - 5)), Ok(Amount::Bytes(304 << 20)));
    }

    #[test]
    fn shares_are_of_this_machine() {
        let half = Amount::Percent(50.0).bytes().unwrap();
        let whole = Amount::Percent(100.0).bytes().unwrap();
        assert!(whole > 16 << 20 && half.abs_diff(whole / 2) < 4096);
    }

    #[test]
    fn sizes_as_shown() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (16 << 20, "16 MiB"), (1500 << 20, "1.5 GiB")]
        {
            assert_eq!(Size::from(bytes).to_string(), text);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_a_size_or_none(text in prop_oneof!["\\PC{0,20}", "[0-9.]{0,24} ?[kmgtKMGT]?(i?[bB])?%?", "[0-9.eEinfNa+-]{0,12}%"]) {
            match parse(&text) {
                Ok(Amount::Percent(percent)) => prop_assert!(percent > 0.0 && percent <= 100.0),
                Ok(Amount::Bytes(_)) => prop_assert!(text.contains(|digit: char| digit.is_ascii_digit())),
                Err(error) => prop_assert!(error.to_string().contains("512M")),
            }
        }

        #[test]
        fn a_whole_number_of_any_unit_is_exact(number in any::<u64>(), unit in 0usize..5, suffix in "(i?[bB])?") {
            let text = format!("{number}{}{suffix}", ["", "k", "M", "g", "T"][unit]);
            let expected = number.checked_mul(1 << (10 * unit)).map(Amount::Bytes);
            prop_assert_eq!(parse(&text).ok(), expected, "{}", text);
        }

        #[test]
        fn any_number_of_bytes_is_shown(bytes in any::<u64>()) {
            let shown = Size::from(bytes).to_string();
            prop_assert!(shown.ends_with('B') && shown.len() < 20, "{}", shown);
        }
    }
}
