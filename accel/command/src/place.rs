//! Where the devices are: this machine, a copy of its sysfs, or an emulation.

use std::path::PathBuf;

use anyhow::{Context, Result};
use idxd::emulated::EmulateSpec;
use idxd::sysfs::{discover, Discovery, Files, Model, Tree};

/// Options that all verbs have.
#[derive(Debug, clap::Args)]
pub struct DeviceOptions {
    /// Use emulated devices, as in sockets=2,devices=4,engines=8,queues=2,generation=1 (devices are
    /// per socket)
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["sysfs", "dev"])]
    emulate: Option<String>,
    /// Use DIR in place of /sys, for example a copy of another machine's
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,
    /// Use DIR in place of /dev
    #[arg(long, value_name = "DIR", default_value = "/dev")]
    dev: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Devices to list, configure or test.
pub struct Machine {
    /// sysfs, real or not.
    pub tree: Box<dyn Tree>,
    /// The directory for /dev.
    pub dev: PathBuf,
    /// The emulation, if any.
    pub emulated: Option<EmulateSpec>,
}

impl DeviceOptions {
    /// Opens it.
    ///
    /// # Errors
    /// If the specification of an emulation is wrong.
    pub fn open(&self) -> Result<Machine> {
        let emulated: Option<EmulateSpec> = match &self.emulate {
            Some(text) => Some(text.parse().context("--emulate")?),
            None => None,
        };
        let tree: Box<dyn Tree> = match &emulated {
            Some(spec) => Box::new(Model::new(spec)),
            None => Box::new(Files::new(&self.sysfs)),
        };
        Ok(Machine { tree, dev: self.dev.clone(), emulated })
    }
}

impl Machine {
    /// All devices. Reports unreadable parts on stderr.
    pub fn discover(&self) -> Discovery {
        let found = discover(&*self.tree);
        for problem in &found.problems {
            eprintln!("uzswap: {problem}");
        }
        found
    }

    /// Why there is no device, and how to get one.
    pub fn no_device(&self, found: &Discovery) -> String {
        let bus = self.tree.shown("bus/dsa");
        let cause = if !found.has_bus {
            format!(
                "there is no {bus}: this CPU has no accelerators, they are switched off in the BIOS, or the kernel's \
                 idxd driver is not loaded (modprobe idxd; it needs CONFIG_INTEL_IDXD)"
            )
        } else if found.devices.is_empty() && !found.problems.is_empty() {
            "its attributes could not be read, see above".to_owned()
        } else if !found.dsa_devices.is_empty() {
            format!(
                "{} in {bus} do other work (DSA); IAA devices are called iax; enable them in the BIOS",
                found.dsa_devices.join(", ")
            )
        } else {
            format!("{bus} has no device called iax; enable IAA in the BIOS")
        };
        format!(
            "no IAA device: {cause}. Xeon processors from the fourth generation on (Sapphire Rapids) have them. To try \
             without, add --emulate sockets=1,devices=4,queues=2"
        )
    }
}
