//! `uzswap device generate`: a systemd.generator(7), which systemd runs at every start.
//!
//! It writes a unit for each section of the configuration and links it as a swap dependency. All
//! paths are relative to `UZSWAP_GENERATOR_ROOT`, for tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::configuration::{parse, Section, SwapSection};
use crate::size::meminfo_bytes;

/// Configuration paths. The first that exists is the only one read, even if it is empty.
const CONFIGURATIONS: [&str; 2] = ["etc/uzswap-generator.conf", "usr/lib/uzswap-generator.conf"];
const PROGRAM: &str = "/usr/bin/uzswap";

/// Write systemd units for /etc/uzswap-generator.conf; systemd calls this
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Directory for the units
    directory: PathBuf,
    /// Directories that systemd names too, and that are not used
    #[arg(num_args = 0..=2)]
    others: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let root = std::env::var_os("UZSWAP_GENERATOR_ROOT").map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let Some(file) = CONFIGURATIONS.iter().map(|file| root.join(file)).find(|file| file.exists()) else {
        return Ok(());
    };
    if is_container(&root) {
        // In a container, swap belongs to the host.
        return Ok(());
    }
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let sections = parse(&text, meminfo_bytes(&root.join("proc/meminfo"), "MemTotal:")? >> 20)
        .with_context(|| file.display().to_string())?;
    for section in &sections {
        write(&arguments.directory, section)?;
    }
    Ok(())
}

fn is_container(root: &Path) -> bool {
    fs::read_to_string(root.join("run/systemd/container")).is_ok_and(|name| !name.trim().is_empty())
}

fn write(directory: &Path, section: &Section) -> Result<()> {
    let name = format!("{}.service", section.name);
    let unit = directory.join(&name);
    fs::write(&unit, text(section)).with_context(|| format!("cannot write {}", unit.display()))?;
    let wants = directory.join("swap.target.wants");
    fs::create_dir_all(&wants)?;
    std::os::unix::fs::symlink(Path::new("..").join(&name), wants.join(&name))
        .with_context(|| format!("cannot link {name} in {}", wants.display()))
}

fn text(section: &Section) -> String {
    let Section { name, size_mib, ram_mib, swap, compressor, priority, is_strict } = section;
    let strict = if *is_strict { " --strict" } else { "" };
    let (mut needs, mut file) = (String::new(), String::new());
    if let Some(SwapSection { limit_mib, directory, is_plain }) = swap {
        // The server creates the file after its directory is mounted and writable.
        needs = format!("RequiresMountsFor={directory}\nAfter=systemd-remount-fs.service\n");
        let plain = if *is_plain { " --swap-plain" } else { "" };
        file = format!(" --swap {limit_mib}M --swap-dir {directory}{plain}");
    }
    format!(
        "# Written by `uzswap device generate` for [{name}].
[Unit]
Description=Swap on compressed memory ({name})
DefaultDependencies=no
After=systemd-modules-load.service local-fs-pre.target
Before=swap.target shutdown.target
Conflicts=shutdown.target
{needs}
[Service]
Type=notify
ExecStart={PROGRAM} device swap --size {size_mib}M --ram {ram_mib}M{file} --compressor {compressor} --priority {priority} \
--stats /run/{name}.json{strict}
KillMode=mixed
TimeoutStopSec=infinity
OOMScoreAdjust=-1000
MemorySwapMax=0
LimitMEMLOCK=infinity
"
    )
}
