//! Address spaces that outlive the process that paged them.
//!
//! A child of vfork() that has not executed yet, and every process made by clone() with CLONE_VM,
//! shares the memory of its creator. When the creator is killed, or becomes another program, its
//! pager's threads end, and the memory lives on. While a descriptor of its userfaultfd is open, a
//! page that is out is waited for and not read as zeroes. So the supervisor keeps the descriptor
//! until the address space has ended. A process that only executes another program never notices.
//! One that needs a page that is out cannot have it: it is ended, and that is said.
//!
//! A creator that ends in an orderly way brings everything in before (`preload`'s module `ending`).

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use sys::memory::USER_END;
use sys::userfaultfd::{Message, Stop, Userfaultfd, MESSAGES_MAX};
use sys::PAGE_SIZE;

/// An address that is asked about: nothing there changes, whether it is mapped or not.
const ASKED: usize = 1 << 30;
/// Waiters are woken from here on: lower addresses are refused.
const LOWEST: usize = 1 << 16;

/// One address space.
struct Space {
    reports: OwnedFd,
    /// The process that paged it.
    creator: u32,
}

impl Space {
    fn userfaultfd(&self) -> Userfaultfd {
        Userfaultfd::from_descriptor(self.reports.as_raw_fd())
    }

    /// Whether no process has this memory any more. Asks by lifting a write protection, which pages
    /// that are out do not have.
    fn is_over(&self) -> bool {
        self.userfaultfd().write_protect(ASKED, PAGE_SIZE, false) == Err(Stop::Gone)
    }
}

/// All of them.
#[derive(Default)]
pub struct Orphans {
    spaces: Vec<Space>,
}

impl Orphans {
    /// Takes over the userfaultfds of a process whose pager has ended.
    pub fn adopt(&mut self, kept: Vec<OwnedFd>, creator: Option<u32>) {
        for reports in kept {
            let space = Space { reports, creator: creator.unwrap_or(0) };
            if !space.is_over() {
                // Faults that the pager had read are reported again.
                space.userfaultfd().wake(LOWEST, USER_END - LOWEST);
                self.spaces.push(space);
            }
        }
    }

    /// Lets go of address spaces that have ended, and ends the processes of `tree` that wait for
    /// pages of one. Returns what there is to say of these.
    pub fn look(&mut self, tree: impl Fn() -> Vec<i32>) -> Vec<String> {
        let (mut said, mut forked) = (Vec::new(), Vec::new());
        self.spaces.retain(|space| {
            if space.is_over() {
                return false;
            }
            let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
            while space.userfaultfd().read(&mut messages, 1) == 1 {
                match messages[0] {
                    Message::Fault { thread, .. } => said.extend(end_waiting(&tree(), thread, space.creator)),
                    // The child lacks the same pages.
                    Message::Fork { descriptor } => {
                        // SAFETY: the kernel opened it for this process just now.
                        let reports = unsafe { OwnedFd::from_raw_fd(descriptor) };
                        forked.push(Space { reports, creator: space.creator });
                    }
                    // The thread continues once it is read.
                    _ => {}
                }
            }
            true
        });
        self.spaces.extend(forked);
        said
    }
}

/// Ends the process of `tree` whose thread waits for a page of `creator`'s; `None` when that is the
/// creator's own, which is ending.
fn end_waiting(tree: &[i32], thread: u32, creator: u32) -> Option<String> {
    let Some(pid) = tree.iter().copied().find(|pid| has_waiting(*pid, thread)) else {
        return Some(format!(
            "process {creator}: it has ended, and thread {thread} of another one that shares its memory waits for ever for a \
             page of it"
        ));
    };
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // SAFETY: takes no pointers. The descriptor names this very process even if its number is used
    // again.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0u32) } as i32;
    if raw < 0 || pid as u32 == creator {
        return None;
    }
    // SAFETY: opened just now.
    let handle = unsafe { OwnedFd::from_raw_fd(raw) };
    if !has_waiting(pid, thread) {
        return None;
    }
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: takes no pointers beside a null one.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), libc::SIGKILL, info, 0u32) };
    Some(format!(
        "process {pid} ({}): ended, since it needs a page of memory that it shared with process {creator}, which was killed",
        name.trim_end()
    ))
}

/// Whether a process has this thread, by the number that the thread itself knows, and it waits for
/// a page.
fn has_waiting(pid: i32, thread: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).any(|task| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let own = numbers.split_ascii_whitespace().last().and_then(|number| number.parse().ok());
        // Kernels that do not tell where a thread waits say 0.
        let waits_in = || fs::read_to_string(task.join("wchan")).unwrap_or_default();
        own == Some(thread) && matches!(waits_in().trim(), "handle_userfault" | "0" | "")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_over_when_its_last_process_has_ended() {
        let Ok(opened) = Userfaultfd::open(0) else {
            testkit::skip!("userfaultfd", "no userfaultfd");
            return;
        };
        // SAFETY: opened just now.
        let reports = unsafe { OwnedFd::from_raw_fd(opened.descriptor()) };
        let mut orphans = Orphans::default();
        orphans.adopt(vec![reports.try_clone().unwrap()], Some(1));
        assert_eq!(orphans.spaces.len(), 1, "this process lives");
        assert_eq!(orphans.look(Vec::new), Vec::<String>::new());
        assert_eq!(orphans.spaces.len(), 1);
        // A child opens one of its own memory, and sends it before it ends.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the child makes system calls alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sent = Userfaultfd::open(0).is_ok_and(|opened| {
                sys::packets::send(theirs.as_raw_fd(), &[&[1]], &[opened.descriptor()]).is_ok()
            });
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!sent)) };
        }
        let (_, [raw, _]) = sys::packets::receive(ours.as_raw_fd(), &mut [0]).unwrap();
        // SAFETY: a child of this test.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        // SAFETY: received just now.
        orphans.adopt(vec![unsafe { OwnedFd::from_raw_fd(raw) }], Some(1));
        assert_eq!(orphans.spaces.len(), 1, "the child's memory has ended");
    }
}
