//! Rows on userfaultfd: its features, the right to use it, moving and scanning.

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;

use sys::memory;
use sys::pagemap::{Pagemap, Run};
use sys::userfaultfd::{feature, Message, OpenError, Userfaultfd, MESSAGES_MAX, MISSING, WRITE_PROTECT};
use sys::PAGE_SIZE;

use super::machine::UPGRADE;
use super::row::Row;
use crate::environment::Environment;
use crate::{kernel_features, rights};

/// Features that paging needs, and the use of each.
const NEEDED: [(u64, &str); 6] = [
    (feature::MOVE, "pages leave and return with their frames"),
    (feature::PAGEFAULT_FLAG_WP, "staging memory is registered with it"),
    (feature::EVENT_REMAP, "mremap is followed"),
    (feature::EVENT_REMOVE, "madvise is followed"),
    (feature::EVENT_UNMAP, "munmap is followed"),
    (feature::THREAD_ID, "streams of faults are told apart"),
];

/// Features of access tracking, and the use of each.
const TRACKING: [(u64, &str); 2] = [
    (feature::RWP, "pages are armed to see which are used"),
    (feature::RWP_ASYNC, "uses of pages need no message"),
];

/// The consequence of no access tracking, and the fix.
const UNSEEN: &str = "which pages go is learned from those that return";
const UPGRADE_TO_TRACK: &str = "install Linux 7.3 or later";

/// The use of fork reports, and the consequence of none.
const FORKS: &str = "forks that bypass the C library are seen";
const WITHOUT_FORKS: &str =
    "without CAP_SYS_PTRACE forks bring all pages in, and static programs are not managed";

pub fn rows() -> Vec<Row> {
    let mut rows = vec![opened(Userfaultfd::open(0).map(Userfaultfd::close))];
    let offered = Userfaultfd::features().unwrap_or(0);
    let (any, granted) = match Userfaultfd::open_with_any(offered & all_names()) {
        Ok((opened, granted)) => {
            opened.close();
            (true, granted)
        }
        Err(_) => (false, 0),
    };
    if any {
        rows.extend(features(offered, granted));
        rows.push(moved((granted & feature::MOVING == feature::MOVING).then(try_move)));
    } else {
        // The kernel may be new enough even if no userfaultfd opens.
        let name = "features, moving pages";
        rows.push(Row::needed(name, false, "cannot be known without a userfaultfd", "see userfaultfd"));
    }
    rows.push(match try_scan() {
        Ok(()) => Row::needed("PAGEMAP_SCAN", true, "present pages are found without walking", ""),
        Err(error) => Row::needed("PAGEMAP_SCAN", false, error, UPGRADE),
    });
    rows.push(match kernel_features::sees_uses(false) {
        true => Row::known("access tracking", true, "by userfaultfd's RWP", ""),
        false => Row::known("access tracking", false, UNSEEN, UPGRADE_TO_TRACK),
    });
    rows.extend(rights());
    rows
}

fn all_names() -> u64 {
    feature::NAMES.iter().fold(0, |all, (bit, _)| all | bit)
}

fn opened(result: Result<(), OpenError>) -> Row {
    let name = "userfaultfd";
    match result {
        Ok(()) => Row::needed(name, true, "opens, for the kernel's own accesses too", ""),
        Err(OpenError::NotPermitted) => {
            let place = Environment::here();
            Row::needed(name, false, format!("not permitted here: {}", place.name()), place.fix())
        }
        Err(error) => {
            let fix = match Environment::here() {
                Environment::Gvisor => Environment::Gvisor.fix(),
                _ => "use a kernel that is built with CONFIG_USERFAULTFD",
            };
            Row::needed(name, false, error.to_string(), fix)
        }
    }
}

/// Returns a row for each feature: whether the kernel has it and grants it to this user.
fn features(offered: u64, granted: u64) -> Vec<Row> {
    let row = |&(bit, name): &(u64, &str)| {
        let need = NEEDED.iter().find(|(needed, _)| *needed == bit);
        let tracking = TRACKING.iter().find(|(tracking, _)| *tracking == bit);
        let is_of_forks = bit == feature::EVENT_FORK;
        let use_ = need.or(tracking).map_or(if is_of_forks { FORKS } else { "not used" }, |(_, use_)| *use_);
        let (without, upgrade) = match (need, tracking) {
            (None, Some(_)) => (UNSEEN.to_owned(), UPGRADE_TO_TRACK),
            (None, None) if !is_of_forks => (use_.to_owned(), "no command: it is not used"),
            _ => (format!("with it {use_}"), UPGRADE),
        };
        let (ok, detail, fix) = if granted & bit != 0 {
            (true, use_.to_owned(), "")
        } else if offered & bit != 0 {
            (false, format!("not permitted to this user; {without}"), Environment::here().forks_fix())
        } else {
            (false, format!("not in this kernel; {without}"), upgrade)
        };
        let name = format!("feature {name}");
        match need {
            Some(_) => Row::needed(&name, ok, detail, fix),
            None if is_of_forks => Row::limiting(&name, ok, detail, fix, WITHOUT_FORKS),
            None => Row::known(&name, ok, detail, fix),
        }
    };
    feature::NAMES.iter().map(row).collect()
}

fn moved(moving: Option<Result<(), String>>) -> Row {
    let name = "moving pages";
    match moving {
        Some(Ok(())) => Row::needed(name, true, "pages went out to staging memory and back", ""),
        Some(Err(error)) => Row::needed(name, false, error, UPGRADE),
        None => Row::needed(name, false, "not in this kernel", UPGRADE),
    }
}

struct Region {
    at: usize,
    pages: usize,
}

impl Region {
    fn map(pages: usize) -> Result<Self, String> {
        let at = memory::map(pages * PAGE_SIZE).map_err(|error| format!("mmap: {error}"))?;
        Ok(Region { at: at.as_ptr() as usize, pages })
    }

    fn write(&self, page: usize, byte: u8) {
        assert!(page < self.pages);
        // SAFETY: inside the probe's private mapping.
        unsafe { ((self.at + page * PAGE_SIZE) as *mut u8).write_volatile(byte) };
    }

    fn read(&self, page: usize) -> u8 {
        assert!(page < self.pages);
        // SAFETY: inside the probe's private mapping.
        unsafe { ((self.at + page * PAGE_SIZE) as *const u8).read_volatile() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made in `map`; a userfaultfd on it is closed by now.
        unsafe { libc::munmap(self.at as *mut libc::c_void, self.pages * PAGE_SIZE) };
    }
}

struct Open(Userfaultfd);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Moves pages between two mappings as eviction and fault-in do, and reads a fault.
fn try_move() -> Result<(), String> {
    const PAGES: usize = 16;
    const LEN: usize = PAGES * PAGE_SIZE;
    let (program, staging) = (Region::map(PAGES)?, Region::map(PAGES)?);
    let open = || Userfaultfd::open(feature::MOVE).map(Open).map_err(|error| error.to_string());
    let (of_program, of_staging) = (open()?, open()?);
    for page in 0..PAGES {
        program.write(page, page as u8 + 1);
    }
    let registered = |region: &Region, with: &Open, mode| {
        with.0.register(region.at, LEN, mode).map_err(|stop| format!("memory cannot be registered: {stop:?}"))
    };
    registered(&program, &of_program, MISSING)?;
    registered(&staging, &of_staging, WRITE_PROTECT)?;
    let moved = |with: &Open, to: &Region, from: &Region| {
        // SAFETY: both mappings are the probe's, and their content may move.
        let progress = unsafe { with.0.move_pages(to.at, from.at, LEN, true) };
        match progress.stop {
            None => Ok(()),
            Some(stop) => Err(format!("UFFDIO_MOVE stopped after {} bytes: {stop:?}", progress.done)),
        }
    };
    moved(&of_staging, &staging, &program)?;
    if (0..PAGES).any(|page| staging.read(page) != page as u8 + 1) {
        return Err("moved pages have lost their bytes".to_owned());
    }
    try_fault(&of_program, program.at + 3 * PAGE_SIZE)?;
    moved(&of_program, &program, &staging)?;
    match (0..PAGES).find(|page| program.read(*page) != *page as u8 + 1) {
        None => Ok(()),
        Some(page) => Err(format!("page {page} came back changed")),
    }
}

/// Lets the kernel touch a moved page and reads the fault message. The page is missing afterwards.
fn try_fault(userfaultfd: &Open, address: usize) -> Result<(), String> {
    let (reader, writer) = std::io::pipe().map_err(|error| format!("pipe: {error}"))?;
    let toucher = std::thread::spawn(move || {
        // SAFETY: a page of the probe's mapping; the write waits until the fault is served.
        unsafe { libc::write(writer.as_raw_fd(), address as *const libc::c_void, 1) }
    });
    let mut messages = [Message::Unmap { start: 0, end: 0 }; MESSAGES_MAX];
    let seen = userfaultfd.0.wait(2000) && userfaultfd.0.read(&mut messages, 1) == 1;
    let expected = matches!(messages[0], Message::Fault { address: at, .. } if at == address);
    // A zero page ends the wait. It is discarded, so the page is missing again.
    userfaultfd.0.zero(address, PAGE_SIZE);
    let written = toucher.join().unwrap_or(-1);
    drop(reader);
    // SAFETY: a page of the probe's mapping.
    unsafe { libc::madvise(address as *mut libc::c_void, PAGE_SIZE, libc::MADV_DONTNEED) };
    match (seen && expected, written) {
        (true, 1) => Ok(()),
        (false, _) => Err("a system call's access to a missing page was not reported".to_owned()),
        (true, _) => Err("a system call's access to a missing page failed".to_owned()),
    }
}

fn try_scan() -> Result<(), String> {
    let region = Region::map(64)?;
    for page in [3, 4, 40] {
        region.write(page, 1);
    }
    let map = Pagemap::open().map_err(|error| format!("/proc/self/pagemap: {error}"))?;
    let mut runs = [Run::default(); 8];
    let (count, _) = map.present(region.at, region.at + 64 * PAGE_SIZE, &mut runs);
    map.close();
    let page = |address: u64| (address as usize - region.at) / PAGE_SIZE;
    let found: Vec<_> = runs[..count].iter().map(|run| (page(run.start), page(run.end))).collect();
    match found[..] {
        [(3, 5), (40, 41)] => Ok(()),
        _ => Err(format!("found pages {found:?} instead of 3, 4 and 40")),
    }
}

/// Ways to the right to page. One is enough.
fn rights() -> Vec<Row> {
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let (allows, said, fix) = match &sysctl {
        Ok(text) => {
            (text.trim() == "1", format!("={}", text.trim()), "sudo sysctl vm.unprivileged_userfaultfd=1")
        }
        Err(error) => (false, format!(": {error}"), UPGRADE),
    };
    let node = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    let opened = node.as_ref().map_or_else(|error| format!(": {error}"), |_| " opens".to_owned());
    let place = Environment::here();
    let forks = "forks are reported; root may page with it, others need one of the next two";
    vec![
        Row::known("right: CAP_SYS_PTRACE", rights::reports_forks(), forks, place.forks_fix()),
        Row::known("right: sysctl", allows, format!("vm.unprivileged_userfaultfd{said}"), fix),
        Row::known("right: device node", node.is_ok(), format!("/dev/userfaultfd{opened}"), place.fix()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_missing_from_the_kernel_or_not_granted() {
        let row = |offered, granted, name: &str| {
            let rows = features(offered, granted);
            assert_eq!(rows.len(), feature::NAMES.len());
            rows.into_iter().find(|row| row.name == format!("feature {name}")).unwrap()
        };
        let all = all_names();
        assert!(features(all, all).iter().all(|row| row.ok && row.fix.is_none() && row.limit.is_none()));
        let fork = row(all, all & !feature::EVENT_FORK, "EVENT_FORK");
        assert!(!fork.needed && !fork.ok && fork.fix.unwrap() == Environment::here().forks_fix());
        assert!(fork.limit.unwrap().contains("forks bring all pages in"));
        let old = all & !feature::MOVE & !feature::RWP;
        let moving = row(old, old, "MOVE");
        assert!(moving.needed && !moving.ok && moving.fix.unwrap() == UPGRADE);
        // A kernel that cannot move pages does not count as one that tracks uses.
        let tracking = row(old, old, "RWP");
        assert!(!tracking.needed && !tracking.ok && tracking.fix.unwrap().contains("7.3"));
        let poison = row(0, 0, "POISON");
        assert!(!poison.needed && !poison.ok && !poison.fix.unwrap().contains("install"));
    }

    #[test]
    fn pages_must_move() {
        assert!(moved(Some(Ok(()))).ok);
        for row in [moved(None), moved(Some(Err("lost bytes".into())))] {
            assert!(row.needed && !row.ok && row.fix.is_some());
        }
    }

    #[test]
    fn refusals_name_the_fix() {
        let row = opened(Err(OpenError::NotPermitted));
        assert!(!row.ok && row.fix.unwrap() == Environment::here().fix());
        assert!(opened(Err(OpenError::Missing)).fix.unwrap().contains("CONFIG_USERFAULTFD"));
        assert!(opened(Ok(())).ok);
    }

    #[test]
    fn probes_that_can_run_here_succeed() {
        match Userfaultfd::open(feature::MOVE) {
            Ok(opened) => opened.close(),
            Err(error) => {
                testkit::skip!("kernel", "{error}");
                return;
            }
        }
        for _ in 0..20 {
            assert_eq!(try_move(), Ok(()));
        }
        assert_eq!(try_scan(), Ok(()));
    }
}
