//! A swap device and a memory cgroup, both always undone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{command, run, Loop};

pub struct Swap<'a>(&'a Loop);

impl<'a> Swap<'a> {
    pub fn new(device: &'a Loop) -> Self {
        run(command("mkswap").arg(&device.0));
        run(command("swapon").args(["--discard", "-p", "100"]).arg(&device.0));
        Swap(device)
    }

    /// Bytes swapped out to the device now.
    pub fn used_bytes(&self) -> u64 {
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        let line = swaps.lines().find(|line| line.starts_with(&*self.0 .0)).expect("it is swapped on");
        line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap() << 10
    }
}

impl Drop for Swap<'_> {
    fn drop(&mut self) {
        // Only this device: the machine's other swap stays on.
        let status = command("swapoff").arg(&self.0 .0).status();
        assert!(status.is_ok_and(|status| status.success()), "swapoff {}", self.0 .0);
    }
}

pub struct Cgroup {
    path: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    /// A group with a memory limit and unlimited swap; `None` if no group can be made.
    pub fn new(limit_bytes: u64) -> Option<Cgroup> {
        let name = format!("uzswap-test-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let is_v2 = !v1.join("memory.limit_in_bytes").exists();
        let path = if is_v2 { Path::new("/sys/fs/cgroup").join(name) } else { v1.join(name) };
        fs::create_dir(&path).ok()?;
        let group = Cgroup { path, is_v2 };
        let file = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(group.path.join(file), limit_bytes.to_string()).ok()?;
        Some(group)
    }

    /// A command whose process is a member from its start.
    pub fn command(&self, program: &str) -> Command {
        let mut command = command("sh");
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.path.display());
        command.args(["-c", &script, "sh", program]);
        command
    }

    /// Members that the kernel killed because it found no page to reclaim.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.path.join(file)).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .map_or(0, |count| count.trim().parse().unwrap())
    }

    pub fn peak_bytes(&self) -> u64 {
        let file = if self.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.path.join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
