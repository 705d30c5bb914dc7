//! The settings: the kernel driver's parameters and a few of our own.

use std::time::Duration;

/// Whether the jobs of a batch run in parallel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// One job after the other.
    Sync,
    /// All jobs of a batch are submitted, then all are polled.
    Async,
}

/// How long to wait for a completion before it counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Time, measured from the last completion of the request.
    Time(Duration),
    /// Rounds of polling without a completion. For emulated devices whose time is counted in polls.
    Polls(u64),
}

/// Parameters of a driver. Those with the kernel's names have the defaults of its batching series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Compress jobs go to all devices of the package in turn, not only to the processor's own
    /// device.
    pub distribute_comps: bool,
    /// The same for decompress jobs.
    pub distribute_decomps: bool,
    /// The number of compress-only queues of a device, its last ones.
    pub g_comp_wqs_per_iaa: usize,
    /// Decompresses each result and compares checksums.
    pub verify_compress: bool,
    /// Whether the jobs of a batch run in parallel.
    pub sync_mode: SyncMode,
    /// Compresses in software if no device can. Otherwise such units fail. Not in the kernel, which
    /// sends uncompressed pages to the swap device; here there may be none.
    pub software_compress: bool,
    /// When a completion counts as lost.
    pub patience: Patience,
    /// Milliseconds before a failed queue is tried again. Doubles with each failure in a row, up to
    /// a thousand times as long.
    pub quarantine_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            distribute_comps: true,
            distribute_decomps: false,
            g_comp_wqs_per_iaa: 1,
            verify_compress: false,
            sync_mode: SyncMode::Async,
            software_compress: true,
            patience: Patience::Time(Duration::from_millis(100)),
            quarantine_ms: 10,
        }
    }
}

/// Tries to get a descriptor, for compression with fixed codes. These are the series' figures.
pub(crate) const TRIES_COMPRESS: u32 = 1000;
/// For compression with codes of the page's own.
pub(crate) const TRIES_COMPRESS_DYNAMIC: u32 = 2000;
/// For decompression, including verification.
pub(crate) const TRIES_DECOMPRESS: u32 = 500;

impl Settings {
    /// The names that [`Settings::set`] knows.
    pub const KEYS: &'static str =
        "distribute_comps, distribute_decomps, g_comp_wqs_per_iaa, verify_compress, \
sync_mode=sync|async, software_compress, patience_ms, patience_polls, quarantine_ms";

    /// Sets `key` from text. `None`: unknown key.
    pub fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        let flag = || match value {
            "1" | "Y" | "y" | "on" | "true" => Ok(true),
            "0" | "N" | "n" | "off" | "false" => Ok(false),
            _ => Err(format!("{key} is 1 or 0, not {value:?}")),
        };
        let number = |least: u64, most: u64| match value.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(format!("{key} is {least} to {most}, not {value:?}")),
        };
        Some(match key {
            "distribute_comps" => flag().map(|value| self.distribute_comps = value),
            "distribute_decomps" => flag().map(|value| self.distribute_decomps = value),
            "g_comp_wqs_per_iaa" => number(0, 8).map(|value| self.g_comp_wqs_per_iaa = value as usize),
            "verify_compress" => flag().map(|value| self.verify_compress = value),
            "sync_mode" => match value {
                "sync" => Ok(SyncMode::Sync),
                "async" => Ok(SyncMode::Async),
                "async_irq" => {
                    Err("sync_mode=async_irq is the kernel driver's alone: a device's completion interrupts \
are not delivered to programs; use async, which polls"
                        .to_owned())
                }
                _ => Err(format!("sync_mode is sync or async, not {value:?}")),
            }
            .map(|value| self.sync_mode = value),
            "software_compress" => flag().map(|value| self.software_compress = value),
            "patience_ms" => {
                number(1, 60_000).map(|ms| self.patience = Patience::Time(Duration::from_millis(ms)))
            }
            "patience_polls" => number(1, 1 << 40).map(|polls| self.patience = Patience::Polls(polls)),
            "quarantine_ms" => number(0, 60_000).map(|ms| self.quarantine_ms = ms),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_series() {
        let settings = Settings::default();
        assert!(settings.distribute_comps && !settings.distribute_decomps && !settings.verify_compress);
        assert_eq!((settings.g_comp_wqs_per_iaa, settings.sync_mode), (1, SyncMode::Async));
        assert_eq!((TRIES_COMPRESS, TRIES_DECOMPRESS, TRIES_COMPRESS_DYNAMIC), (1000, 500, 2000));
    }

    #[test]
    fn every_key_is_understood_and_mistakes_are_named() {
        let mut settings = Settings::default();
        for (key, value) in [
            ("distribute_comps", "0"),
            ("distribute_decomps", "Y"),
            ("g_comp_wqs_per_iaa", "3"),
            ("verify_compress", "1"),
            ("sync_mode", "sync"),
            ("software_compress", "off"),
            ("patience_polls", "5000"),
            ("quarantine_ms", "3"),
        ] {
            assert!(Settings::KEYS.contains(key));
            assert_eq!(settings.set(key, value), Some(Ok(())), "{key}");
        }
        let expected = Settings {
            distribute_comps: false,
            distribute_decomps: true,
            g_comp_wqs_per_iaa: 3,
            verify_compress: true,
            sync_mode: SyncMode::Sync,
            software_compress: false,
            patience: Patience::Polls(5000),
            quarantine_ms: 3,
        };
        assert_eq!(settings, expected);
        assert_eq!(settings.set("patience_ms", "7"), Some(Ok(())));
        assert_eq!(settings.patience, Patience::Time(Duration::from_millis(7)));
        assert_eq!(settings.set("engines", "8"), None);
        assert!(settings.set("sync_mode", "later").unwrap().unwrap_err().contains("sync or async"));
        let error = settings.set("sync_mode", "async_irq").unwrap().unwrap_err();
        assert!(error.contains("not delivered to programs") && error.contains("use async"), "{error}");
        assert!(settings.set("g_comp_wqs_per_iaa", "9").unwrap().is_err());
        assert!(settings.set("verify_compress", "maybe").unwrap().is_err());
    }
}
