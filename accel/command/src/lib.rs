//! `uzswap iaa`: Intel's In-Memory Analytics Accelerators, found, configured, tested.
//!
//! The program's feature `iaa` includes it.

mod configure;
mod list;
mod names;
mod place;
mod profile;
mod stats;
mod table;
mod test;

use anyhow::Result;

/// What to do with accelerators.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "Examples:
  uzswap iaa list                                      what there is, and who may use it
  sudo uzswap iaa configure -d 4 -q 2                  four devices a socket, two queues each
  uzswap iaa configure -d 4 -q 2 --dry-run             the same, only printing what would be written
  uzswap iaa test --json > report.json                 round trips on every queue, with figures
  uzswap iaa test --emulate sockets=2,devices=4        the same on emulated devices

docs/operate/iaa.md has the whole way from the BIOS on.")]
// Help takes each verb's text from its arguments.
#[allow(missing_docs)]
pub enum Iaa {
    List(list::Arguments),
    Configure(configure::Arguments),
    Load(configure::LoadArguments),
    Save(configure::SaveArguments),
    Stats(stats::Arguments),
    Test(test::Arguments),
}

impl Iaa {
    /// Runs the verb.
    ///
    /// # Errors
    /// The reason, and the fix.
    pub fn run(&self) -> Result<()> {
        match self {
            Iaa::List(arguments) => list::run(arguments),
            Iaa::Configure(arguments) => configure::run(arguments),
            Iaa::Load(arguments) => configure::load(arguments),
            Iaa::Save(arguments) => configure::save(arguments),
            Iaa::Stats(arguments) => stats::run(arguments),
            Iaa::Test(arguments) => test::run(arguments),
        }
    }
}
