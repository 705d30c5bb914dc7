//! Options of `uzswap device` on storage: the compressor and the swap file.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{bail, Result};
use device::SwapDisk;

use crate::size;

/// The same for every kind of device.
#[derive(Debug, Clone, clap::Args)]
pub struct StorageArguments {
    /// Write blocks that do not fit into memory to a file on disk of at most SIZE; 5 % of the disk
    /// stay free. The kernel sees --size only, so make that larger
    #[arg(long, value_name = "SIZE")]
    swap: Option<String>,
    /// Directory of that file, which has no name there [default: /var/tmp]
    #[arg(long, value_name = "DIR", requires = "swap")]
    swap_dir: Option<PathBuf>,
    /// Do not encrypt that file, for disks that are encrypted already; checksums remain
    #[arg(long)]
    swap_plain: bool,
    /// What kept a disk beyond its server: an error that says so
    #[arg(long, alias = "swap-key", hide = true)]
    swap_file: Vec<OsString>,
    /// Compressor; an unknown name lists the known ones
    #[arg(long, value_name = "NAME", default_value = uzswap::DEFAULT_COMPRESSOR)]
    pub compressor: String,
}

impl StorageArguments {
    /// Returns these options as words for another `uzswap device`.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--compressor".into(), (&self.compressor).into()];
        let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
        if let Some(size) = &self.swap {
            add("--swap", size.into());
        }
        if let Some(directory) = &self.swap_dir {
            add("--swap-dir", directory.into());
        }
        if self.swap_plain {
            words.push("--swap-plain".into());
        }
        words
    }

    /// Returns these options for nbdkit's plugin, one argument each, of any bytes.
    pub fn settings(&self) -> Result<Vec<OsString>> {
        let mut settings: Vec<OsString> = vec![format!("compressor={}", self.compressor).into()];
        if let Some(bytes) = self.swap_bytes()? {
            settings.push(format!("swap={bytes}").into());
            settings.push(format!("swap-plain={}", self.swap_plain).into());
        }
        if let Some(directory) = &self.swap_dir {
            let mut setting = OsString::from("swap-dir=");
            setting.push(directory);
            settings.push(setting);
        }
        Ok(settings)
    }

    pub fn swap_bytes(&self) -> Result<Option<u64>> {
        self.swap.as_ref().map(|text| size::of_option("--swap", text)).transpose()
    }

    pub fn described(&self) -> String {
        self.swap.as_ref().map_or(String::new(), |size| format!(" and {size} of disk"))
    }

    /// Checks what clap cannot.
    pub fn check(&self, has_ram: bool) -> Result<()> {
        if !self.swap_file.is_empty() {
            bail!(
                "--swap-file and --swap-key are gone: a disk does not outlive its server; --swap SIZE gives it a file for what \
                 --ram has no room for"
            );
        }
        if self.swap_plain && self.swap.is_none() {
            bail!("--swap-plain needs --swap");
        }
        if self.swap.is_some() && !has_ram {
            bail!("--swap needs --ram: without a bound nothing goes to the file");
        }
        Ok(())
    }

    pub fn open(&self) -> Result<Option<SwapDisk>> {
        let Some(size_bytes) = self.swap_bytes()? else { return Ok(None) };
        let disk = SwapDisk::open(self.swap_dir.as_deref(), size_bytes, self.swap_plain);
        disk.map_err(|error| anyhow::anyhow!("--swap, --swap-dir: {error}")).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        storage: StorageArguments,
    }

    fn parsed(words: &[&str]) -> Result<StorageArguments, clap::Error> {
        Line::try_parse_from(["device"].iter().chain(words)).map(|line| line.storage)
    }

    #[test]
    fn words_say_the_same_again() {
        for words in [
            &["--compressor", "lz4"][..],
            &["--compressor", "lz4", "--swap", "1G", "--swap-dir", "/srv", "--swap-plain"],
        ] {
            let storage = parsed(words).unwrap();
            assert_eq!(storage.words(), words.iter().map(OsString::from).collect::<Vec<_>>());
            storage.check(true).unwrap();
        }
    }

    #[test]
    fn contradicting_options_are_refused() {
        let checked =
            |words: &[&str], has_ram| parsed(words).unwrap().check(has_ram).unwrap_err().to_string();
        assert!(checked(&["--swap-plain"], true).contains("needs --swap"));
        assert!(checked(&["--swap", "1G"], false).contains("needs --ram"));
        for words in [&["--swap-key", "x"][..], &["--swap-file", "x", "--swap-key", "y", "--swap", "1G"]] {
            assert!(checked(words, true).contains("--swap-key are gone"));
        }
        assert!(parsed(&["--swap-dir", "/srv"]).is_err());
    }
}
