//! `uzswap device`: compressed memory as a disk or swap, served by nbdkit's plugin or `ublk`.

mod attach;
mod configuration;
mod generate;
mod process;
mod shelter;
mod storage;
mod swap;
mod ublk;

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use anyhow::Result;

/// What to do.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "From nothing to swap, on a kernel with ublk (6.0 and later):
  cargo build --release -p uzswap
  sudo target/release/uzswap device swap --size 8G --ram 2G &
  swapon --show

Ctrl-C, or SIGTERM, takes everything back in and undoes it. To have it at every start, write \
/etc/uzswap-generator.conf; the document operate/block-device.md has that, and how to serve disks to other programs and virtual machines.

Without ublk, nbdkit serves the disk (`apt install nbdkit nbd-client nbdfuse libnbd-bin`, and \
`cargo build --release -p uzswap-nbdkit`). It can deadlock as a machine's only swap: see operate/block-device.md.")]
pub enum Device {
    Swap(swap::Arguments),
    // `device --ublk --size 8G` is the same.
    #[command(long_flag = "ublk")]
    Ublk(ublk::Arguments),
    Generate(generate::Arguments),
}

impl Device {
    pub fn run(&self) -> Result<i32> {
        match self {
            Device::Swap(arguments) => swap::run(arguments),
            Device::Ublk(arguments) => ublk::run(arguments),
            Device::Generate(arguments) => generate::run(arguments).map(|()| 0),
        }
    }
}

/// Returns a flag that requests to end set: SIGTERM, Ctrl-C, a hangup.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
