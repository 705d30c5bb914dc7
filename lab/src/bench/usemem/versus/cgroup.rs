//! A memory cgroup of this program, version 1 or 2.

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use super::undo::{Changes, Undo};
use super::{read_trimmed, write};

pub struct Cgroup {
    path: PathBuf,
    version: u8,
}

/// Where a cgroup can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    mount: PathBuf,
    /// This process's own group, from the mount.
    own: PathBuf,
    version: u8,
}

/// Finds the memory controller in the texts of /proc/self/mounts and /proc/self/cgroup.
fn find(mounts: &str, membership: &str) -> Option<Hierarchy> {
    let mount = |wanted: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [_, at, kind, options, ..] = fields[..] else { return None };
            let has = option.is_none_or(|option| options.split(',').any(|word| word == option));
            (kind == wanted && has).then(|| PathBuf::from(at))
        })
    };
    let own = |is_wanted: &dyn Fn(&str, &str) -> bool| {
        membership.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            is_wanted(number, controllers).then(|| PathBuf::from(path.trim_start_matches('/')))
        })
    };
    if let Some(mount) = mount("cgroup", Some("memory")) {
        let own = own(&|_, controllers| controllers.split(',').any(|name| name == "memory"))?;
        return Some(Hierarchy { mount, own, version: 1 });
    }
    let own = own(&|number, controllers| number == "0" && controllers.is_empty())?;
    Some(Hierarchy { mount: mount("cgroup2", None)?, own, version: 2 })
}

impl Cgroup {
    /// Makes a group. `bytes_when` returns its limit, given whether zswap's compressed bytes count
    /// towards it.
    ///
    /// # Errors
    /// If there is no memory controller, or this process may not use it.
    pub fn make(changes: &Changes, bytes_when: impl FnOnce(bool) -> u64) -> Result<Self> {
        let read = |path: &str| read_trimmed(Path::new(path));
        let place = find(&read("/proc/self/mounts")?, &read("/proc/self/cgroup")?);
        let place = place.context("no cgroup file system with the memory controller is mounted")?;
        let parent = if place.version == 1 { parent_v1(&place) } else { parent_v2(&place, changes)? };
        let path = parent.join(super::command::next_name());
        changes.make(Undo::RemoveCgroup(path.clone()), || {
            fs::create_dir(&path).with_context(|| path.display().to_string())
        })?;
        let group = Cgroup { path, version: place.version };
        let limit = group.file(["memory.limit_in_bytes", "memory.max"]);
        write(&limit, &bytes_when(group.pays_for_the_pool()).to_string())?;
        Ok(group)
    }

    fn file(&self, names: [&str; 2]) -> PathBuf {
        self.path.join(names[usize::from(self.version) - 1])
    }

    /// Starts `command` in the group.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        let path = self.path.join("cgroup.procs");
        let file = OpenOptions::new().write(true).open(&path).with_context(|| path.display().to_string())?;
        // SAFETY: writes to an open file, which is async-signal-safe.
        unsafe {
            command.pre_exec(move || match libc::write(file.as_raw_fd(), c"0".as_ptr().cast(), 1) {
                1 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Ok(())
    }

    /// Anonymous memory of the group's processes.
    pub fn anonymous_bytes(&self) -> Option<u64> {
        let name = if self.version == 1 { "rss" } else { "anon" };
        super::command::stat_field(&self.path.join("memory.stat"), name)
    }

    /// Ends the remaining processes of the group and removes it.
    pub fn remove(self) -> Result<()> {
        // The undo journal keeps it; removing it twice does no harm.
        Undo::RemoveCgroup(self.path).undo()
    }

    pub fn peak_bytes(&self) -> Option<u64> {
        let text = fs::read_to_string(self.file(["memory.max_usage_in_bytes", "memory.peak"])).ok()?;
        text.trim().parse().ok()
    }

    /// Times the limit was hit: `memory.failcnt`, or `max` of `memory.events`.
    pub fn limit_hits(&self) -> Option<u64> {
        if self.version == 2 {
            return super::command::stat_field(&self.path.join("memory.events"), "max");
        }
        read_trimmed(&self.path.join("memory.failcnt")).ok()?.parse().ok()
    }

    /// Whether zswap's compressed bytes count as the group's memory: in version 2 only.
    pub fn pays_for_the_pool(&self) -> bool {
        self.version == 2
    }
}

/// Below this process's own group, so that outer limits still count.
fn parent_v1(place: &Hierarchy) -> PathBuf {
    let own = place.mount.join(&place.own);
    // In a container the group's path may be that of the host.
    if own.is_dir() {
        own
    } else {
        place.mount.clone()
    }
}

/// The nearest group above that hands the memory controller down. A group with processes cannot,
/// except the root.
fn parent_v2(place: &Hierarchy, changes: &Changes) -> Result<PathBuf> {
    if let Some(path) = handing_down(place) {
        return Ok(path);
    }
    let root = &place.mount;
    if !has_memory(root, "cgroup.controllers") {
        bail!("{} has no memory controller", root.display());
    }
    let control = root.join(HANDED_DOWN);
    changes.make(Undo::HandBack(control.clone()), || write(&control, "+memory"))?;
    Ok(root.clone())
}

/// Controllers that groups below have.
const HANDED_DOWN: &str = "cgroup.subtree_control";

fn handing_down(place: &Hierarchy) -> Option<PathBuf> {
    let groups = place.own.ancestors().map(|group| place.mount.join(group));
    groups.into_iter().find(|path| has_memory(path, HANDED_DOWN))
}

fn has_memory(group: &Path, file: &str) -> bool {
    let text = fs::read_to_string(group.join(file)).unwrap_or_default();
    text.split_ascii_whitespace().any(|word| word == "memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let v1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                  cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                  cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                  cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found = find(v1, "3:cpu,cpuacct:/x\n2:memory:/jobs/a\n0::/\n").unwrap();
        let place =
            |mount: &str, own: &str, version| Hierarchy { mount: mount.into(), own: own.into(), version };
        assert_eq!(found, place("/sys/fs/cgroup/memory", "jobs/a", 1));
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = find(v2, "0::/user.slice/session-1.scope\n").unwrap();
        assert_eq!(found, place("/sys/fs/cgroup", "user.slice/session-1.scope", 2));
        assert_eq!(find("proc /proc proc rw 0 0\n", "0::/\n"), None);
    }

    /// A tree of directories as in version 2; each group comes with the controllers that it hands
    /// down.
    fn tree(name: &str, groups: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("uzswap-cgroup-{}-{name}", std::process::id()));
        for (group, handed_down) in groups {
            let path = root.join(group);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(HANDED_DOWN), handed_down).unwrap();
        }
        root
    }

    #[test]
    fn the_nearest_group_that_hands_memory_down_is_taken() {
        let root = tree("near", &[("", "cpu memory"), ("a", "cpuset memory\n"), ("a/b", "cpu")]);
        let place = |own: &str| Hierarchy { mount: root.clone(), own: own.into(), version: 2 };
        assert_eq!(handing_down(&place("a/b")), Some(root.join("a")));
        assert_eq!(handing_down(&place("")), Some(root.join("")));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_root_hands_memory_down_on_request_and_back_afterwards() {
        let root = tree("root", &[("", "cpu"), ("a", "")]);
        let place = Hierarchy { mount: root.clone(), own: "a".into(), version: 2 };
        assert_eq!(handing_down(&place), None);
        let control = root.join(HANDED_DOWN);
        let undo = Undo::HandBack(control.clone());
        undo.undo().unwrap();
        assert_eq!(fs::read_to_string(&control).unwrap(), "cpu", "nothing to hand back");
        fs::write(&control, "cpu memory").unwrap();
        undo.undo().unwrap();
        assert_eq!(fs::read_to_string(&control).unwrap(), "-memory", "what the kernel is told");
        fs::remove_dir_all(&root).unwrap();
    }
}
