//! Commands that other programs have now, or that this build leaves out: each says where it is.

use std::ffi::OsString;

use anyhow::{bail, Result};

/// A command's words.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum Moved {
    /// Now of the program uzswap-lab
    #[command(hide = true)]
    Bench(Words),
    /// Now of the program uzswap-lab
    #[command(hide = true)]
    Trace(Words),
    /// Of builds with the feature iaa
    #[cfg(not(feature = "iaa"))]
    #[command(hide = true)]
    Iaa(Words),
}

impl Moved {
    /// Says where the command is; `words` are all of this process's.
    ///
    /// # Errors
    /// Always.
    pub fn run(&self, words: &[OsString]) -> Result<i32> {
        let words: Vec<_> = words.iter().skip(1).map(|word| word.to_string_lossy()).collect();
        let words = words.join(" ");
        match self {
            Moved::Bench(_) => bail!(there("bench", &words)),
            Moved::Trace(_) => bail!(there("trace", &words)),
            #[cfg(not(feature = "iaa"))]
            Moved::Iaa(_) => bail!(
                "`uzswap iaa` is left out of this build, as accelerators are; with them:\n    cargo run --release --features iaa -- {words}"
            ),
        }
    }
}

/// Where a command is that measures.
fn there(verb: &str, words: &str) -> String {
    format!("`uzswap {verb}` is now `uzswap-lab {verb}`:\n    cargo run --release -p uzswap-lab -- {words}")
}
