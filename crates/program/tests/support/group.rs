//! A memory cgroup of a test's own.

use std::fs;
use std::path::PathBuf;

use super::{command, own_limit, wait_until, Started};

pub struct Group {
    path: PathBuf,
    limit: PathBuf,
}

impl Group {
    /// `None` where there is no room for one.
    pub fn new(name: &str) -> Option<Self> {
        let own = own_limit()?;
        let path = own.parent()?.join(format!("uzswap-{name}-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&path) {
            testkit::skip!("cgroup", "no memory cgroup can be made: {error}");
            return None;
        }
        Some(Group { limit: path.join(own.file_name()?), path })
    }

    pub fn limited(self, bytes: u64) -> Option<Self> {
        match fs::write(&self.limit, bytes.to_string()) {
            Ok(()) => Some(self),
            Err(error) => {
                testkit::skip!("cgroup", "groups have no memory limit here: {error}");
                None
            }
        }
    }

    pub fn run(&self, words: &[&str]) -> Started {
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.path.display());
        Started::new(&mut command(&[&["sh", "-c", &join, "sh"], words].concat()))
    }

    /// Anonymous memory of all its processes.
    pub fn anonymous_bytes(&self) -> u64 {
        self.field(&["anon ", "rss "])
    }

    /// Memory files of all its processes.
    pub fn shared_bytes(&self) -> u64 {
        self.field(&["shmem "])
    }

    /// A field that one of both versions has.
    fn field(&self, names: &[&str]) -> u64 {
        let text = fs::read_to_string(self.path.join("memory.stat")).unwrap();
        let field = |name: &&str| text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        names.iter().find_map(field).expect("one of the names")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_until("its processes end", || fs::remove_dir(&self.path).is_ok());
    }
}
