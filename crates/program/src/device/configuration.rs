//! `/etc/uzswap-generator.conf`: sections `[uzswapN]` of `key = value`.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail, Context, Result};

/// Least size of a device, in MiB: a smaller one is not worth a server.
const SIZE_MIB_MIN: f64 = 32.0;
const SIZE_MIB_MAX: f64 = (1u64 << 20) as f64;
const SWAP_MIB_MIN: f64 = 16.0;
const SWAP_MIB_MAX: f64 = (2u64 << 20) as f64;

/// A swap device to create.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// For example `uzswap0`.
    pub name: String,
    pub size_mib: u64,
    pub ram_mib: u64,
    /// A swap file for pages beyond the memory limit.
    pub swap: Option<SwapSection>,
    pub compressor: String,
    pub priority: i32,
    /// Passes `--strict`: threads must be marked and the out-of-memory score set.
    pub is_strict: bool,
}

/// Settings of the swap file.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapSection {
    pub limit_mib: u64,
    pub directory: String,
    pub is_plain: bool,
}

/// The settings of a section, and their defaults.
const SETTINGS: [(&str, &str); 9] = [
    ("size", "min(ram / 2, 4096)"),
    ("resident-limit", "size / 3"),
    ("swap-limit", "0"),
    ("swap-dir", "/var/tmp"),
    ("swap-plain", "no"),
    ("compressor", uzswap::DEFAULT_COMPRESSOR),
    ("swap-priority", "100"),
    ("strict", "no"),
    // No device is created on machines with more memory.
    ("host-memory-limit", "none"),
];

/// A section's settings as written.
type Draft<'a> = BTreeMap<&'static str, &'a str>;

/// Evaluates a formula such as `min(ram / 2, 4096)` as zram-generator does, with variables `names`.
fn value(formula: &str, names: &[(&str, f64)]) -> Result<f64> {
    let mut named =
        |name: &str, _: Vec<f64>| names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let result = fasteval::ez_eval(formula, &mut named).map_err(|error| error.to_string());
    let result = result
        .and_then(|value| value.is_finite().then_some(value).ok_or("its value is no number".to_owned()));
    result.map_err(|reason| anyhow!("{formula:?} is no size: {reason}; for example min(ram / 2, 4096)"))
}

/// Parses a configuration for a machine with `machine_mib` of memory. An error names the first
/// invalid line, with its number.
pub fn parse(text: &str, machine_mib: u64) -> Result<Vec<Section>> {
    let mut drafts: Vec<(&str, Draft<'_>)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let at = || format!("line {}", number + 1);
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let digits = name.strip_prefix("uzswap").unwrap_or("");
            if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                bail!("{}: sections are [uzswap0], [uzswap1] and so on, not [{name}]", at());
            }
            if drafts.iter().any(|(known, _)| *known == name) {
                bail!("{}: [{name}] is there twice", at());
            }
            drafts.push((name, SETTINGS.into()));
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            bail!("{}: neither [section] nor key = value: {line}", at());
        };
        let Some((_, draft)) = drafts.last_mut() else { bail!("{}: no section before it: {line}", at()) };
        let key = key.trim();
        let Some(place) = draft.get_mut(key) else {
            let known = SETTINGS.map(|(known, _)| known).join(", ");
            bail!("{}: there is no setting {key}; choose of {known}", at());
        };
        *place = value.trim();
    }
    let machine = machine_mib as f64;
    let mut sections = Vec::new();
    for (name, draft) in drafts {
        sections.extend(finish(name, &draft, machine).with_context(|| format!("[{name}]"))?);
    }
    Ok(sections)
}

fn finish(name: &str, draft: &Draft<'_>, machine: f64) -> Result<Option<Section>> {
    if draft["host-memory-limit"] != "none" && machine > value(draft["host-memory-limit"], &[])? {
        return Ok(None);
    }
    let size = value(draft["size"], &[("ram", machine)]).context("size")?;
    if size <= 0.0 {
        // As in zram-generator: size 0 means no device.
        return Ok(None);
    }
    if !(SIZE_MIB_MIN..=SIZE_MIB_MAX).contains(&size) {
        bail!("size is {size} MiB: devices have {SIZE_MIB_MIN} MiB to 1 TiB");
    }
    let ram =
        value(draft["resident-limit"], &[("ram", machine), ("size", size)]).context("resident-limit")?;
    if ram < SIZE_MIB_MIN || ram > machine * 0.8 {
        bail!(
            "resident-limit is {ram} MiB: it must be {SIZE_MIB_MIN} at least, and at most 0.8 of the memory"
        );
    }
    let compressor = draft["compressor"];
    if compressor.is_empty()
        || !compressor.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_:.".contains(&byte))
    {
        bail!("compressor: {compressor:?} is no name");
    }
    let priority = draft["swap-priority"];
    let Some(priority) = priority.parse().ok().filter(|priority| (-1..=32767).contains(priority)) else {
        bail!("swap-priority: {priority} is not -1 to 32767");
    };
    let is_strict = truth("strict", draft)?;
    Ok(Some(Section {
        name: name.to_owned(),
        size_mib: size as u64,
        ram_mib: ram as u64,
        swap: swap_file(draft, machine, size)?,
        compressor: compressor.to_owned(),
        priority,
        is_strict,
    }))
}

fn swap_file(draft: &Draft<'_>, machine: f64, size: f64) -> Result<Option<SwapSection>> {
    let limit = value(draft["swap-limit"], &[("ram", machine), ("size", size)]).context("swap-limit")?;
    let directory = draft["swap-dir"];
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if !directory.starts_with('/') || !directory.bytes().all(is_allowed) {
        bail!("swap-dir: {directory:?} is no absolute path of letters, digits and -_./");
    }
    let is_plain = truth("swap-plain", draft)?;
    if limit <= 0.0 {
        return Ok(None);
    }
    if !(SWAP_MIB_MIN..=SWAP_MIB_MAX).contains(&limit) {
        bail!("swap-limit is {limit} MiB: a swap file has {SWAP_MIB_MIN} MiB to 2 TiB, or 0 for none");
    }
    Ok(Some(SwapSection { limit_mib: limit as u64, directory: directory.to_owned(), is_plain }))
}

fn truth(name: &str, draft: &Draft<'_>) -> Result<bool> {
    match draft[name] {
        "yes" | "true" | "1" => Ok(true),
        "no" | "false" | "0" => Ok(false),
        other => bail!("{name}: {other} is neither yes nor no"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, reason) in [
            ("size = 100", "line 1: no section"),
            ("[zram0]", "sections are [uzswap0]"),
            ("[uzswap0]\n\n[uzswap0]", "line 3: [uzswap0] is there twice"),
            ("[uzswap0]\nsize 100", "line 2: neither"),
            ("[uzswap0]\ncolour = red", "there is no setting colour"),
            ("[uzswap0]\nsize = 10", "devices have 32 MiB"),
            ("[uzswap0]\nsize = ram * ", "EofWhileParsing"),
            ("[uzswap0]\nresident-limit = ram", "at most 0.8"),
            ("[uzswap0]\ncompressor = a b", "is no name"),
            ("[uzswap0]\nswap-priority = high", "is not -1 to 32767"),
            ("[uzswap0]\nstrict = perhaps", "strict: perhaps is neither yes nor no"),
            ("[uzswap0]\nswap-limit = 10", "a swap file has 16 MiB to 2 TiB"),
            ("[uzswap0]\nswap-limit = sizes", "swap-limit: "),
            ("[uzswap0]\nswap-dir = var/tmp", "swap-dir: \"var/tmp\" is no absolute path"),
            ("[uzswap0]\nswap-dir = /var/%s", "is no absolute path"),
            ("[uzswap0]\nswap-plain = very", "swap-plain: very is neither yes nor no"),
        ] {
            let said = format!("{:#}", parse(text, 8192).unwrap_err());
            assert!(said.contains(reason), "{text:?}: {said}");
        }
    }

    #[test]
    fn formulas_have_values() {
        for (formula, expected) in [
            ("min(ram / 2, 4096)", 1000.0),
            ("max(ram/2,4096, 5000)", 5000.0),
            ("2 + 3 * 4 - 1", 13.0),
            ("-(2+3)*-2", 10.0),
            (" 8 / 2 / 2 ", 2.0),
            ("1.5*ram", 3000.0),
        ] {
            assert_eq!(value(formula, &[("ram", 2000.0)]).unwrap(), expected, "{formula}");
        }
        let deep = ["(", "-", "min(1,"].map(|part| part.repeat(100_000));
        for formula in ["", "ram /", "1 2", "rom", "min 3", "min(1, 2", "1/0", "1..2", "%", "inf", "NaN"]
            .into_iter()
            .chain(deep.iter().map(String::as_str))
        {
            let said = value(formula, &[("ram", 2000.0)]).unwrap_err().to_string();
            assert!(said.contains("is no size: "), "{formula}: {said}");
        }
        assert!(value("rom", &[("ram", 2000.0)]).unwrap_err().to_string().contains("Undefined(\"rom\")"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_file_is_read_or_refused(
            text in prop_oneof![
                "\\PC{0,200}",
                "\\[uzswap0\\]\nsize = (([0-9.]{1,3}|ram|min\\(|max\\(|[-+*/(),]| ){0,30}|\\PC{0,40})",
                "((\\[uzswap[0-9]{1,5}\\]|size|resident-limit|swap-limit|swap-dir|swap-plain|compressor|swap-priority|strict|host-memory-limit)? ?=? ?[a-z0-9(),/*+-]{0,12}\n){0,12}",
            ],
            machine in 0u64..1 << 30,
        ) {
            for section in parse(&text, machine).unwrap_or_default() {
                prop_assert!(section.size_mib >= 32 && section.ram_mib >= 32);
                // Each value in a unit file is a single word.
                let directory = section.swap.as_ref().map_or("", |swap| &swap.directory);
                let words = [&section.name, &section.compressor, directory];
                prop_assert!(words.iter().all(|word| word.bytes().all(|byte| byte.is_ascii_graphic())));
                prop_assert!(section.swap.is_none_or(|swap| swap.limit_mib >= 16));
            }
        }
    }
}
