//! The processes of this supervisor's tree.

use std::fs;

use super::super::peers::has_supervisor_name;
use super::process::program_of;
use crate::rights;

/// Returns all descendants of this process, including adopted orphans, without `except` and the
/// helper. A process that runs this program has its own tree, which is skipped.
pub fn descendants(except: Option<i32>) -> Vec<i32> {
    descendants_and(except, &mut Vec::new())
}

/// As [`descendants`]; adds the supervisors of skipped trees to `inner`.
pub fn descendants_and(except: Option<i32>, inner: &mut Vec<i32>) -> Vec<i32> {
    let own = program_of("self");
    let mut found = Vec::new();
    add_children(std::process::id() as i32, except, &mut found);
    let mut next = 0;
    while next < found.len() {
        let pid = found[next];
        next += 1;
        if own.is_none() || program_of(&pid.to_string()) != own {
            add_children(pid, None, &mut found);
        } else {
            let mut children = Vec::new();
            add_children(pid, None, &mut children);
            inner.extend(children.into_iter().filter(|child| has_supervisor_name(*child)));
        }
    }
    found
}

/// Returns whether this process has a child other than `except`. Orphans of the tree become its
/// children, so without one the tree has ended.
pub fn has_children(except: Option<i32>) -> bool {
    let mut found = Vec::new();
    add_children(std::process::id() as i32, except, &mut found);
    !found.is_empty()
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
        let found = descendants(None);
        assert!(pids.iter().all(|pid| found.contains(pid)), "{pids:?} in {found:?}");
        assert!(!descendants(Some(pids[0])).contains(&pids[0]));
        children.into_iter().for_each(stop);
    }

    #[test]
    fn a_tree_of_another_uzswap_is_its_own() {
        use std::io::BufRead;
        let own = std::env::current_exe().unwrap();
        let mut other = Command::new(own);
        other.args(["--exact", "run::attach::tree::tests::starts_one_and_waits", "--ignored", "--nocapture"]);
        let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(other.stdout.take().unwrap()).lines().map(Result::unwrap);
        let started =
            lines.find_map(|line| line.strip_prefix("started ").map(|pid| pid.parse::<i32>().unwrap()));
        let found = descendants(None);
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
