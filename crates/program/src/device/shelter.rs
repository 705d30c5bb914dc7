//! A memory cgroup without swap: a process that serves swap must not wait for swap.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The group. Dropping it removes the group once its members have ended.
pub struct Shelter(PathBuf);

impl Shelter {
    /// Creates the group (cgroups 1 or 2); none under systemd, whose unit sets `MemorySwapMax=0`.
    pub fn new() -> Result<Option<Self>> {
        if std::env::var_os("INVOCATION_ID").is_some() {
            return Ok(None);
        }
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, file) = match v1.join("memory.swappiness").exists() {
            true => (v1, "memory.swappiness"),
            false => (Path::new("/sys/fs/cgroup"), "memory.swap.max"),
        };
        let path = root.join(format!("uzswap-device-{}", std::process::id()));
        // A fixed mode: users with write access could add groups. It holds for every umask.
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .with_context(|| format!("cannot make a memory cgroup in {}", root.display()))?;
        let shelter = Shelter(path);
        fs::write(shelter.0.join(file), "0").with_context(|| format!("the memory cgroup has no {file}"))?;
        Ok(Some(shelter))
    }

    pub fn take_in(&self, id: u32) -> Result<()> {
        fs::write(self.0.join("cgroup.procs"), id.to_string())
            .context("cannot move a process to a cgroup without swap")
    }
}

impl Drop for Shelter {
    fn drop(&mut self) {
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
