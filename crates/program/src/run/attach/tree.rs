//! The processes of this supervisor's tree.

use std::fs;

/// All descendants of this process, orphans that came to it included, without `except`.
pub fn descendants(except: Option<i32>) -> Vec<i32> {
    let mut found = Vec::new();
    add_children(std::process::id() as i32, except, &mut found);
    let mut next = 0;
    while next < found.len() {
        add_children(found[next], None, &mut found);
        next += 1;
    }
    found
}

/// A process's children are listed with the thread that made them.
fn add_children(parent: i32, except: Option<i32>, found: &mut Vec<i32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { return };
    for thread in threads.flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for pid in text.split_ascii_whitespace().filter_map(|word| word.parse().ok()) {
            // One that changed its parent meanwhile is listed twice.
            if Some(pid) != except && !found.contains(&pid) {
                found.push(pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn children_of_any_thread_are_found() {
        let start = || Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let mut children = [start(), std::thread::spawn(start).join().unwrap()];
        let pids = children.each_ref().map(|child| child.id() as i32);
        let found = descendants(None);
        assert!(pids.iter().all(|pid| found.contains(pid)), "{pids:?} in {found:?}");
        assert!(!descendants(Some(pids[0])).contains(&pids[0]));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
