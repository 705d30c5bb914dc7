//! What `uzswap device` is told of how blocks are stored: the compressor, and the file behind
//! memory.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use device::{Config, KeyChoice, SwapDisk};

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
    /// Keep the disk in FILE, which is created if it does not exist: its content survives this
    /// process, and flushed writes survive a power loss. With --swap-key or --swap-plain. Not for
    /// swap
    #[arg(long, value_name = "FILE", conflicts_with = "swap")]
    swap_file: Option<PathBuf>,
    /// Key of that file: 32 random bytes, readable by its owner only; created with the file
    #[arg(long, value_name = "FILE", requires = "swap_file", conflicts_with = "swap_plain")]
    swap_key: Option<PathBuf>,
    /// Compressor; an unknown name lists the known ones
    #[arg(long, value_name = "NAME", default_value = uzswap::DEFAULT_COMPRESSOR)]
    pub compressor: String,
}

impl StorageArguments {
    /// The same for another `uzswap device`.
    pub fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["--compressor".into(), (&self.compressor).into()];
        let mut add = |option: &str, value: OsString| words.extend([option.into(), value]);
        if let Some(size) = &self.swap {
            add("--swap", size.into());
        }
        if let Some(directory) = &self.swap_dir {
            add("--swap-dir", directory.into());
        }
        if let Some(file) = &self.swap_file {
            add("--swap-file", file.into());
        }
        if let Some(file) = &self.swap_key {
            add("--swap-key", file.into());
        }
        if self.swap_plain {
            words.push("--swap-plain".into());
        }
        words
    }

    /// The same for the plugin, each as one argument of any bytes.
    ///
    /// # Errors
    /// When the size is none.
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

    /// How large the file may be that is gone at the end.
    ///
    /// # Errors
    /// When the size is none.
    pub fn swap_bytes(&self) -> Result<Option<u64>> {
        self.swap.as_ref().map(|text| size::of_option("--swap", text)).transpose()
    }

    /// What is said of the disk behind memory.
    pub fn described(&self) -> String {
        match (&self.swap, &self.swap_file) {
            (Some(size), _) => format!(" and {size} of disk"),
            (None, Some(file)) => format!(", kept in {}", file.display()),
            (None, None) => String::new(),
        }
    }

    /// Refuses, for a device that is swapped on, a file that is kept.
    ///
    /// # Errors
    /// Why.
    pub fn check_swapped_on(&self) -> Result<()> {
        if self.swap_file.is_some() {
            bail!(
                "--swap-file keeps a disk: what is swapped out means nothing once its programs are gone, and a flush takes \
                 memory, which a server of swap must not ask for; --swap is for swap"
            );
        }
        Ok(())
    }

    /// Checks what clap cannot.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn check(&self, has_ram: bool) -> Result<()> {
        let has_file = self.swap.is_some() || self.swap_file.is_some();
        if self.swap_plain && !has_file {
            bail!("--swap-plain needs --swap or --swap-file");
        }
        if has_file && !has_ram {
            bail!("--swap and --swap-file need --ram: without a bound nothing goes to the file");
        }
        if self.swap_file.is_some() && self.swap_key.is_none() && !self.swap_plain {
            bail!("--swap-file needs --swap-key FILE, or --swap-plain on a disk that is encrypted below");
        }
        Ok(())
    }

    /// Opens the file, if one was asked for.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn open(&self, config: &Config) -> Result<Option<SwapDisk>> {
        if let Some(file) = &self.swap_file {
            let key = self.swap_key.clone().map_or(KeyChoice::Plain, KeyChoice::File);
            return SwapDisk::open_kept(file, key, config).context("--swap-file").map(Some);
        }
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
            &["--compressor", "auto", "--swap-file", "/srv/disk", "--swap-key", "/etc/key"],
            &["--compressor", "auto", "--swap-file", "/srv/disk", "--swap-plain"],
        ] {
            let storage = parsed(words).unwrap();
            assert_eq!(storage.words(), words.iter().map(OsString::from).collect::<Vec<_>>());
            storage.check(true).unwrap();
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let checked =
            |words: &[&str], has_ram| parsed(words).unwrap().check(has_ram).unwrap_err().to_string();
        assert!(checked(&["--swap-plain"], true).contains("needs --swap"));
        assert!(checked(&["--swap", "1G"], false).contains("need --ram"));
        assert!(checked(&["--swap-file", "x"], true).contains("--swap-key"));
        let kept = parsed(&["--swap-file", "x", "--swap-plain"]).unwrap();
        assert!(kept.check_swapped_on().unwrap_err().to_string().contains("means nothing"));
        for words in [
            &["--swap-dir", "/srv"][..],
            &["--swap", "1G", "--swap-file", "x"],
            &["--swap-key", "x"],
            &["--swap-file", "x", "--swap-key", "y", "--swap-plain"],
        ] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
    }
}
