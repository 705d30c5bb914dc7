//! A report's facts about the machine, without names.

use std::fs;

use idxd::real::Instructions;
use idxd::Waiter;
use serde_json::{json, Value};

/// Words of the kernel's command line that matter to accelerators.
const PARAMETERS: [&str; 6] = ["intel_iommu", "iommu", "no5lvl", "idxd", "iaa_crypto", "sm_on"];

/// Processor, kernel and their relevant features.
pub fn machine() -> Value {
    let instructions = Instructions::detect();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    json!({
        "cpu": field("model name"),
        "family": field("cpu family"),
        "model": field("model"),
        "stepping": field("stepping"),
        "microcode": field("microcode"),
        "is_virtual": field("flags").map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        "cpus": sys::cpu_count(),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "command_line": read("/proc/cmdline").map(|line| parameters(&line).join(" ")),
        "movdir64b": instructions.movdir64b,
        "enqcmd": instructions.enqcmd,
        "waiter": format!("{:?}", Waiter::detect()),
    })
}

/// The relevant parameters alone: others may contain names.
fn parameters(line: &str) -> Vec<&str> {
    let matters = |word: &&str| {
        let name = word.split(['=', '.']).next().unwrap_or_default();
        PARAMETERS.contains(&name)
    };
    line.split_whitespace().filter(matters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_names_are_told() {
        let line = "root=UUID=12 intel_iommu=on,sm_on no5lvl hostname=secret idxd.sva=1";
        assert_eq!(parameters(line), ["intel_iommu=on,sm_on", "no5lvl", "idxd.sva=1"]);
        assert!(machine()["kernel"].is_string());
    }
}
