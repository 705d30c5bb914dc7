//! Address spaces that outlive the agent that paged them.
//!
//! An agent ends when no process has its memory. When it is killed before, the memory lives on.
//! While a descriptor of its userfaultfd is open, an access to an evicted page blocks instead of
//! reading zeroes. So the supervisor keeps the descriptor until the address space has ended, and
//! ends processes that access an evicted page, with a message.
//!
//! A process of the tree may send a userfaultfd that blocks its reader or reports arbitrary events.
//! So each address space has its own thread, which ends only processes of the creator's user, and
//! each user's share is bounded.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::Arc;
use std::time::Duration;

use sys::memory::USER_END;
use sys::userfaultfd::{Message, Stop, Userfaultfd, MESSAGES_MAX};
use sys::PAGE_SIZE;

use crate::run::peers::blocking::{BlockingPool, Foreign};
use crate::run::peers::{Ids, Owner};

/// An address for queries, which change nothing there, mapped or not.
const ASKED: usize = 1 << 30;
/// The range in which waiters are woken: the kernel refuses lower addresses, and on x86-64 the last
/// page.
const WOKEN: Range<usize> = 1 << 16..USER_END - PAGE_SIZE;
/// Bounds for one user: address spaces taken over at a time, and all watched ones with their forks.
/// At the bound, processes of that user that fork or need a page wait.
const ADOPTED_MAX: usize = 64;
const SPACES_MAX: usize = 2 * ADOPTED_MAX;
/// One user's address spaces that are not watched yet: what needs a page of one waits.
const WAITING_MAX: usize = 256;
const WATCHERS_MAX: usize = 512;
const LOOK: Duration = Duration::from_millis(50);
const SAID_MAX: usize = 64;
/// Looks for a waiting process after which it is named as one that waits for ever.
const LOOKS: u32 = 40;

static WATCHERS: BlockingPool = BlockingPool::new(WATCHERS_MAX);

type Tree = Arc<dyn Fn() -> Vec<i32> + Send + Sync>;

pub struct Orphans {
    tree: Tree,
    counts: HashMap<Owner, Arc<AtomicUsize>>,
    /// Userfaultfds for which a watcher is still to be had, with creators and owners.
    waiting: Vec<(Foreign, u32, Owner)>,
    sender: SyncSender<String>,
    said: Receiver<String>,
}

impl Orphans {
    /// Starts without any; `tree` lists the processes that may share an address space.
    pub fn new(tree: impl Fn() -> Vec<i32> + Send + Sync + 'static) -> Self {
        let (sender, said) = mpsc::sync_channel(SAID_MAX);
        Orphans { tree: Arc::new(tree), counts: HashMap::new(), waiting: Vec::new(), sender, said }
    }

    /// Takes over the userfaultfds of an agent that has ended.
    pub fn adopt(&mut self, kept: Vec<Foreign>, creator: u32, owner: Owner) {
        self.waiting.extend(kept.into_iter().map(|reports| (reports, creator, owner)));
        self.watch_waiting();
        let mut owns = 0;
        self.waiting.retain(|(_, _, other)| {
            owns += usize::from(*other == owner);
            *other != owner || owns <= WAITING_MAX
        });
        if owns > WAITING_MAX {
            let _ = self.sender.try_send(format!(
                "{owner}: more than {} address spaces outlive the processes that paged them: pages that are out read as \
                 zeroes in some of them",
                ADOPTED_MAX + WAITING_MAX
            ));
        }
    }

    /// Watches the first of those that wait, as far as their users' bounds permit. The supervisor
    /// calls this in every turn.
    pub fn watch_waiting(&mut self) {
        for (reports, creator, owner) in std::mem::take(&mut self.waiting) {
            let count = self.counts.entry(owner).or_default();
            let Some(counted) = Counted::one_more(count, ADOPTED_MAX) else {
                self.waiting.push((reports, creator, owner));
                continue;
            };
            let (tree, sender) = (Arc::clone(&self.tree), self.sender.clone());
            Space { reports, creator, owner, tree, sender, counted }.watch_in_pool();
        }
    }

    /// Returns whether an address space is watched, or will be.
    pub fn are_any(&self) -> bool {
        !self.waiting.is_empty() || self.counts.values().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    pub fn said(&self) -> impl Iterator<Item = String> + '_ {
        self.said.try_iter()
    }
}

/// One unit of a user's count.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn one_more(count: &Arc<AtomicUsize>, most: usize) -> Option<Counted> {
        let more = |count| (count < most).then_some(count + 1);
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.is_ok().then(|| Counted(Arc::clone(count)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Space {
    reports: Foreign,
    /// The process that paged it, and its owner.
    creator: u32,
    owner: Owner,
    tree: Tree,
    sender: SyncSender<String>,
    counted: Counted,
}

impl Space {
    fn userfaultfd(&self) -> Userfaultfd {
        Userfaultfd::from_descriptor(self.reports.as_raw_fd())
    }

    /// Returns whether the memory has ended. Lifts a write protection, which evicted pages lack.
    fn is_over(&self) -> bool {
        self.userfaultfd().write_protect(ASKED, PAGE_SIZE, false) == Err(Stop::Gone)
    }

    fn watch_in_pool(self) {
        WATCHERS.run(move || self.watch());
    }

    /// Ends the processes that wait for its pages, until the address space has ended.
    fn watch(self) {
        if self.is_over() {
            return;
        }
        // The kernel reports faults again that the pager had read.
        self.userfaultfd().wake(WOKEN.start, WOKEN.len());
        let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        let mut looks = 0;
        while !self.is_over() {
            if !self.userfaultfd().wait(LOOK.as_millis() as i32) {
                continue;
            }
            // A fork event is read only when there is room for the child's space.
            let child = Counted::one_more(&self.counted.0, SPACES_MAX);
            if child.is_none() || self.userfaultfd().read(&mut messages, 1) != 1 {
                std::thread::sleep(LOOK);
                continue;
            }
            match messages[0] {
                // A process that gets another parent during the look, as its creator ends, is in no
                // list. The kernel reports its fault again.
                Message::Fault { thread, .. } if !self.end_waiting(thread) => {
                    looks += 1;
                    if looks == LOOKS {
                        self.say(format!(
                            "process {}, an agent: it has ended, and thread {thread} of its program waits for ever for a \
                             page",
                            self.creator
                        ));
                    }
                    std::thread::sleep(LOOK);
                    self.userfaultfd().wake(WOKEN.start, WOKEN.len());
                }
                Message::Fault { .. } => looks = 0,
                // The child lacks the same pages.
                Message::Fork { descriptor } => {
                    // SAFETY: the kernel opened it for this process just now.
                    let reports = unsafe { OwnedFd::from_raw_fd(descriptor) }.into();
                    if let Some(counted) = child {
                        let (tree, sender) = (Arc::clone(&self.tree), self.sender.clone());
                        Space { reports, tree, sender, counted, ..self }.watch_in_pool();
                    }
                }
                // Reading the event releases the thread.
                _ => {}
            }
        }
    }

    fn say(&self, text: String) {
        let _ = self.sender.try_send(text);
    }

    /// Ends the process whose thread waits for a page, except the creator, which is ending. Returns
    /// whether it was found and ended.
    fn end_waiting(&self, thread: u32) -> bool {
        let creator = self.creator;
        // In another process namespace, a thread of another user may have the same number.
        let mut tree = (self.tree)().into_iter().filter(|pid| is_of(*pid, self.owner));
        let found = tree.find(|pid| has_waiting(*pid, thread));
        let ended = found.and_then(|pid| Some((pid, end(pid, thread, creator, self.owner)?)));
        if let Some((pid, name)) = &ended {
            self.say(format!(
                "process {pid} ({name}): ended, since it needs a page, and its pager, process {creator}, was killed"
            ));
        }
        ended.is_some()
    }
}

/// Ends the process of this thread if it is `owner`'s and not the creator; returns its name.
fn end(pid: i32, thread: u32, creator: u32, owner: Owner) -> Option<String> {
    // The pidfd stays with this process even if its number is reused.
    let handle = sys::process::handle(pid).ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let is_meant = is_of(pid, owner) && pid as u32 != creator && has_waiting(pid, thread);
    if !is_meant || !sys::process::is_there(&handle) {
        return None;
    }
    let _ = sys::process::signal(&handle, libc::SIGKILL);
    Some(name.trim_end().to_owned())
}

fn is_of(pid: i32, owner: Owner) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    Ids::of(&status).is_some_and(|ids| Owner::of(&ids) == owner)
}

/// Returns whether the thread, by the number in its own namespace, waits for a page in `pid`.
fn has_waiting(pid: i32, thread: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).any(|task| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let own = line("NSpid:").split_ascii_whitespace().last().and_then(|number| number.parse().ok());
        // wchan is 0 for a running thread, and for all threads on kernels that do not expose it.
        let waits_in = || fs::read_to_string(task.join("wchan")).unwrap_or_default();
        let waits = || line("State:").trim_start().starts_with(['S', 'D']);
        own == Some(thread) && waits() && matches!(waits_in().trim(), "handle_userfault" | "0" | "")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::userfaultfd::{feature, MISSING};

    #[test]
    fn a_space_is_over_when_its_last_process_has_ended() {
        let Ok(opened) = Userfaultfd::open(0) else {
            testkit::skip!("userfaultfd", "no userfaultfd");
            return;
        };
        // SAFETY: opened just now.
        let reports = unsafe { OwnedFd::from_raw_fd(opened.descriptor()) };
        let owner = Owner::of(&Ids::of_user(77));
        let mut orphans = Orphans::new(Vec::new);
        orphans.adopt(vec![reports.try_clone().unwrap().into()], 1, owner);
        let spaces = |orphans: &Orphans| orphans.counts[&owner].load(Ordering::Relaxed);
        std::thread::sleep(3 * LOOK);
        assert_eq!(spaces(&orphans), 1, "this process lives");
        // A child opens a userfaultfd of its own memory and sends it before it ends.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the child only makes system calls.
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
        orphans.adopt(vec![unsafe { OwnedFd::from_raw_fd(raw) }.into()], 1, owner);
        let began = std::time::Instant::now();
        while spaces(&orphans) != 1 {
            assert!(began.elapsed() < Duration::from_secs(60), "the child's memory has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(orphans.said().count(), 0);
        // The number of watched spaces per user is bounded; regression: others were let go.
        let many = |count| (0..count).map(|_| reports.try_clone().unwrap().into()).collect();
        orphans.adopt(many(2 * ADOPTED_MAX), 1, owner);
        assert_eq!((spaces(&orphans), orphans.waiting.len()), (ADOPTED_MAX, ADOPTED_MAX + 1));
        assert_eq!(orphans.said().count(), 0);
        orphans.adopt(many(WAITING_MAX), 1, owner);
        assert_eq!(orphans.waiting.len(), WAITING_MAX);
        assert!(orphans.said().any(|line| line.contains("more than 320 address spaces")));
        // Room for one is taken by the first that waits.
        orphans.counts[&owner].fetch_sub(1, Ordering::Relaxed);
        orphans.watch_waiting();
        assert_eq!((spaces(&orphans), orphans.waiting.len()), (ADOPTED_MAX, WAITING_MAX - 1));
    }

    /// Regressions: a process waited for ever if the ended pager had read its fault (the kernel
    /// refused to wake so long a range), or if the first look missed it.
    #[test]
    fn a_waiting_process_is_found_even_if_its_fault_was_read_or_a_look_missed_it() {
        if Userfaultfd::open(feature::THREAD_ID).map(Userfaultfd::close).is_err() {
            testkit::skip!("userfaultfd", "no userfaultfd");
            return;
        }
        let at = sys::memory::map(PAGE_SIZE).unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: the child only makes system calls, and touches its page.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sent = Userfaultfd::open(feature::THREAD_ID).is_ok_and(|opened| {
                opened.register(at.as_ptr() as usize, PAGE_SIZE, MISSING).is_ok()
                    && sys::packets::send(theirs.as_raw_fd(), &[&[1]], &[opened.descriptor()]).is_ok()
            });
            // SAFETY: its own page, for which it waits; then ends the child.
            unsafe { libc::_exit(if sent { i32::from(at.as_ptr().read_volatile()) } else { 1 }) };
        }
        let (_, [raw, _]) = sys::packets::receive(ours.as_raw_fd(), &mut [0]).unwrap();
        // As a pager that has ended since.
        let mut read = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
        let reports = Userfaultfd::from_descriptor(raw);
        assert!(reports.wait(60_000) && reports.read(&mut read, 1) == 1);
        let looks = AtomicUsize::new(0);
        let mut orphans = Orphans::new(move || match looks.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Vec::new(),
            _ => vec![child],
        });
        // SAFETY: takes nothing.
        let owner = Owner::of(&Ids::of_user(unsafe { libc::geteuid() }));
        // SAFETY: received just now.
        orphans.adopt(vec![unsafe { OwnedFd::from_raw_fd(raw) }.into()], 1, owner);
        let mut status = 0;
        // SAFETY: a child of this test.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status}");
        let said = orphans.said.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(said.contains("needs a page, and its pager"), "{said}");
    }

    #[test]
    fn a_process_of_another_user_is_left_alone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        // SAFETY: takes nothing.
        let user = unsafe { libc::geteuid() };
        let [own, other] = [user, user + 1].map(|user| Owner::of(&Ids::of_user(user)));
        assert!(is_of(pid as i32, own) && !is_of(pid as i32, other));
        assert_eq!(end(pid as i32, pid, 1, other), None);
        assert!(child.try_wait().unwrap().is_none());
        crate::run::testing::stop(child);
    }
}
