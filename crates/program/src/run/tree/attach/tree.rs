//! The processes of a supervisor's tree.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::process::program_of;
use crate::rights;
use crate::run::peers::has_supervisor_name;

/// The process at the top of a supervisor's tree: all its descendants belong to the tree, adopted
/// orphans included.
#[derive(Debug, Clone)]
pub struct Root {
    pid: i32,
    /// A process that ran before the supervisor belongs to the tree itself, while it lives.
    process: Option<Arc<OwnedFd>>,
    /// A child of the supervisor that does not belong to the tree.
    except: Option<i32>,
}

impl Root {
    /// The tree below this process, without its guardian.
    pub fn own(guardian: Option<i32>) -> Self {
        Root { pid: std::process::id() as i32, process: None, except: guardian }
    }

    /// The tree of a process that runs already.
    pub fn of(pid: i32, handle: Arc<OwnedFd>) -> Self {
        Root { pid, process: Some(handle), except: None }
    }

    #[cfg(test)]
    pub fn below(pid: i32) -> Self {
        Root { pid, process: None, except: None }
    }

    /// Returns whether the supervisor came to a process that ran before.
    pub fn is_attached(&self) -> bool {
        self.process.is_some()
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn except(&self) -> Option<i32> {
        self.except
    }

    /// Returns whether the top process has not been waited for: then its number is its own.
    pub fn is_there(&self) -> bool {
        self.process.as_ref().is_none_or(|handle| sys::process::is_there(handle))
    }

    /// Returns the tree's processes, without the helper. A process that runs this program has its
    /// own tree, which is skipped.
    pub fn members(&self) -> Vec<i32> {
        self.members_and(&mut Vec::new())
    }

    /// As [`members`](Self::members); adds the supervisors of skipped trees to `inner`.
    pub fn members_and(&self, inner: &mut Vec<i32>) -> Vec<i32> {
        let mut found = Vec::new();
        if self.is_attached() {
            found.push(self.pid);
        }
        add_children(self.pid, self.except, &mut found);
        add_descendants(&mut found, inner);
        // Its number may be another process's by now.
        if self.is_there() {
            found
        } else {
            Vec::new()
        }
    }

    /// Returns whether there is a process in the tree. Orphans become the supervisor's children, so
    /// without a child its tree has ended.
    pub fn has_members(&self) -> bool {
        let mut found = Vec::new();
        add_children(self.pid, self.except, &mut found);
        !found.is_empty()
    }
}

/// Adds the descendants of the found processes.
fn add_descendants(found: &mut Vec<i32>, inner: &mut Vec<i32>) {
    let own = program_of("self");
    let mut next = 0;
    while next < found.len() {
        let pid = found[next];
        next += 1;
        if own.is_none() || program_of(&pid.to_string()) != own {
            add_children(pid, None, found);
        } else {
            let mut children = Vec::new();
            add_children(pid, None, &mut children);
            inner.extend(children.into_iter().filter(|child| has_supervisor_name(*child)));
        }
    }
}

/// /proc lists a process's children at the thread that created them.
fn add_children(parent: i32, except: Option<i32>, found: &mut Vec<i32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { return };
    for thread in threads.flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for pid in text.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
            // A process that is reparented during the walk is listed twice.
            if Some(pid) != except && Some(pid) != rights::helper() && !found.contains(&pid) {
                found.push(pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    use crate::run::testing::stop;

    #[test]
    fn children_of_any_thread_are_found() {
        let start = || Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let children = [start(), std::thread::spawn(start).join().unwrap()];
        let pids = children.each_ref().map(|child| child.id() as i32);
        let found = Root::own(None).members();
        assert!(pids.iter().all(|pid| found.contains(pid)), "{pids:?} in {found:?}");
        assert!(!Root::own(Some(pids[0])).members().contains(&pids[0]));
        let handle = Arc::new(sys::process::handle(pids[0]).unwrap());
        assert_eq!(Root::of(pids[0], handle.clone()).members(), [pids[0]]);
        children.into_iter().for_each(stop);
        assert!(Root::of(pids[0], handle).members().is_empty(), "the number may be another's");
    }

    #[test]
    fn a_tree_of_another_uzswap_is_its_own() {
        use std::io::BufRead;
        let own = std::env::current_exe().unwrap();
        let mut other = Command::new(own);
        other.args([
            "--exact",
            "run::tree::attach::tree::tests::starts_one_and_waits",
            "--ignored",
            "--nocapture",
        ]);
        let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(other.stdout.take().unwrap()).lines().map(Result::unwrap);
        let started =
            lines.find_map(|line| line.strip_prefix("started ").map(|pid| pid.parse::<i32>().unwrap()));
        let found = Root::own(None).members();
        assert!(found.contains(&(other.id() as i32)));
        assert!(!found.contains(&started.expect("it says so")));
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
    }

    #[test]
    #[ignore = "run by the test above, in a process of its own"]
    fn starts_one_and_waits() {
        let child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        println!("\nstarted {}", child.id());
        std::io::stdin().lines().for_each(drop);
        stop(child);
    }
}
