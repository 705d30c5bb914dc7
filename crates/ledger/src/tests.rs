//! Ledgers, boards and snapshots together.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::*;

fn settings() -> Settings {
    Settings {
        budget_bytes: 1 << 30,
        batch: 8,
        compressor: format!("zstd:3,dict=/{}", "d".repeat(4094)),
        forms: ["same", "raw", "zstd", "same"].map(String::from).into(),
        verify: true,
        swap_bytes: 16 << 30,
        without: WITHOUT_TRACKING,
        lends: true,
        supervisor: 4711,
        records: false,
        is_emulated: true,
    }
}

fn keeper() -> Keeper {
    Keeper::create(&settings(), 5).unwrap()
}

/// A ledger as a process of the tree maps it.
fn joined(keeper: &Keeper) -> Ledger {
    Ledger::map(keeper.board_file(), keeper.ledger_file()).unwrap()
}

fn snapshot(keepers: &[&Keeper]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for keeper in keepers {
        let sight = Sight::read(keeper.board_file()).unwrap();
        snapshot.add(sight, keeper.ledger_file()).unwrap();
    }
    snapshot
}

fn tree(keepers: &[&Keeper]) -> Tree {
    let mut tree = Tree::default();
    keepers.iter().for_each(|keeper| {
        tree.add(keeper.ledger());
    });
    tree
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let compressor = "z".repeat(COMPRESSOR_LEN_MAX + 1);
    for settings in [
        Settings { compressor, ..settings() },
        Settings { forms: vec![String::new(); FORMS_MAX + 1], ..settings() },
    ] {
        let error = Keeper::create(&settings, 5).err().and_then(|error| error.raw_os_error());
        assert_eq!(error, Some(libc::EINVAL));
    }
    let settings = Settings { forms: Vec::new(), ..settings() };
    assert_eq!(Keeper::create(&settings, 5).unwrap().ledger().settings(), settings);
}

#[test]
fn forms_are_summed_by_name_over_live_and_ended_processes_of_all_users() {
    let (mut one, mut two) = (keeper(), keeper());
    let gone = one.claim(7).unwrap();
    let there = two.claim(8).unwrap();
    one.ledger().slot(gone).add_form(0, 5);
    one.ledger().slot(gone).add_form(2, 100);
    two.ledger().slot(there).add_form(3, 1);
    let names = ["raw", "same", "zstd"].map(String::from);
    let forms = |sums: [u64; 3]| BTreeMap::from_iter(names.clone().into_iter().zip(sums));
    assert_eq!(tree(&[&one, &two]).forms(), forms([0, 6, 100]));
    one.release(gone);
    let again = one.claim(9).unwrap();
    one.ledger().slot(again).add_form(2, 1);
    assert_eq!(tree(&[&one, &two]).forms(), forms([0, 6, 101]));
}

#[test]
fn two_mappings_see_the_same_figures() {
    let mut keeper = keeper();
    let other = joined(&keeper);
    assert_eq!(other.settings(), settings());
    let index = keeper.claim(77).unwrap();
    other.publish(index, 5000, 100, 200, 3);
    other.publish(index, 4000, 100, 200, 3);
    other.slot(index).add(Counter::ZswpOut, 9);
    other.slot(index).faults().record(4000);
    assert_eq!(other.slot(index).wanted_bytes(), 4000 - 100 + 3 * 4096);
    assert_eq!((keeper.ledger().total_bytes(), keeper.audit(), keeper.corrections()), (4000, 4000, 0));
    keeper.set_others(500, 2, 9000);
    assert_eq!((other.total_bytes(), other.pagers()), (4500, 2));
    let figures = tree(&[&keeper]);
    assert_eq!(figures.sum(Counter::ZswpOut), 9);
    keeper.release(index);
    assert_eq!((other.total_bytes(), figures.sum(Counter::ZswpOut)), (500, 9));
    assert_eq!(figures.fault_counts().iter().sum::<u64>(), 1);
    assert_eq!(other.live().count(), 0);
    assert_eq!(keeper.claim(78), Some(index), "slots are used again");
    assert_eq!(other.slot(index).counter(Counter::ZswpOut), 0);
}

#[test]
fn slots_run_out() {
    let mut keeper = keeper();
    for pid in 1..=SLOTS as u32 {
        assert!(keeper.claim(pid).is_some());
    }
    assert_eq!(keeper.claim(9999), None);
}

/// The sum is corrected if it stays wrong, at once if absurd, and not while a process publishes.
#[test]
fn a_wrong_sum_is_corrected() {
    let mut keeper = keeper();
    let other = joined(&keeper);
    let [one, two] = [7, 8].map(|pid| keeper.claim(pid).unwrap());
    other.publish(one, 1 << 30, 0, 0, 0);
    other.publish(two, 1 << 20, 0, 0, 0);
    let right = (1 << 30) + (1 << 20);
    let total = other.total_addresses()[0] as *const std::sync::atomic::AtomicU64;
    // SAFETY: in the ledger, which stays mapped.
    let total = unsafe { &*total };
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    total.fetch_sub(1 << 29, relaxed);
    for look in 0..3 {
        assert_eq!(keeper.audit(), right);
        assert_eq!(other.total_bytes(), right - (1 << 29), "look {look}");
    }
    assert_eq!(keeper.audit(), right);
    assert_eq!((other.total_bytes(), keeper.corrections()), (right, 1));
    for absurd in [u64::MAX, 1 << 60, 1 << 63] {
        total.store(absurd, relaxed);
        keeper.audit();
        assert_eq!(other.total_bytes(), right, "{absurd:x}");
    }
    // A sum that is right in between is being changed.
    for _ in 0..10 {
        total.fetch_add(4096, relaxed);
        keeper.audit();
        total.fetch_sub(4096, relaxed);
        keeper.audit();
    }
    assert_eq!(keeper.corrections(), 4);
    // The kernel's figure of a process overrides its own.
    keeper.know(one, Some(1 << 31));
    for _ in 0..4 {
        assert_eq!(keeper.audit(), (1 << 31) + (1 << 20));
    }
    assert_eq!(other.total_bytes(), (1 << 31) + (1 << 20));
}

#[test]
fn other_files_are_refused() {
    let keeper = keeper();
    let (board, ledger) = (keeper.board_file(), keeper.ledger_file());
    assert!(Ledger::map(board, ledger).is_ok());
    assert!(Ledger::map(ledger, board).is_err(), "the other way round");
    let null = File::open("/dev/null").unwrap();
    assert!(Ledger::map(board, null.as_fd()).is_err() && Ledger::map(null.as_fd(), ledger).is_err());
    // Of the ledger's size but not sealed: it could be truncated.
    let len = File::from(ledger.try_clone_to_owned().unwrap()).metadata().unwrap().len();
    let other = file::create(LEDGER_NAME, len as usize).unwrap();
    assert!(Ledger::map(board, other.as_fd()).is_err(), "not sealed");
}

#[test]
fn neither_file_can_be_cut_short() {
    let keeper = keeper();
    for file in keeper.files() {
        for len in [0, 4096, 1 << 30] {
            // SAFETY: a file of this test.
            assert_eq!(unsafe { libc::ftruncate(file, len) }, -1, "{len}");
        }
    }
    assert_eq!(joined(&keeper).settings(), settings());
}

/// A holder of the board's descriptor can neither map it writable nor write to it, nor through a
/// new open file.
#[test]
fn only_the_supervisor_writes_the_board() {
    let keeper = keeper();
    let path = format!("/proc/self/fd/{}", keeper.board_file().as_raw_fd());
    let again = File::options().read(true).write(true).open(path).unwrap();
    for file in [keeper.board_file(), again.as_fd()] {
        let raw = file.as_raw_fd();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new mappings where the kernel chooses; writes go to a file of this test.
        unsafe {
            let errno = || std::io::Error::last_os_error().raw_os_error();
            let at = libc::mmap(std::ptr::null_mut(), 4096, both, libc::MAP_SHARED, raw, 0);
            assert_eq!((at, errno()), (libc::MAP_FAILED, Some(libc::EPERM)));
            let at = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, raw, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!((libc::mprotect(at, 4096, both), errno()), (-1, Some(libc::EACCES)));
            libc::munmap(at, 4096);
            assert_eq!((libc::pwrite(raw, [0u8; 8].as_ptr().cast(), 8, 0), errno()), (-1, Some(libc::EPERM)));
            assert_eq!(libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SEAL), -1);
        }
    }
    keeper.set_others(7, 0, 0);
    assert_eq!(joined(&keeper).total_bytes(), 7, "the supervisor still can");
}

#[test]
fn an_onlooker_sees_the_figures_of_one_moment() {
    let (mut one, mut two) = (keeper(), keeper());
    let gone = one.claim(7).unwrap();
    one.ledger().slot(gone).add(Counter::ZswpIn, 3);
    one.ledger().slot(gone).faults().record(1000);
    one.ledger().slot(gone).add_form(0, 4);
    one.release(gone);
    for (keeper, pid) in [(&mut one, 8), (&mut two, 9)] {
        let index = keeper.claim(pid).unwrap();
        keeper.ledger().publish(index, 4096, 100, 200, 5);
        keeper.ledger().slot(index).add(Counter::ZswpIn, 10);
    }
    one.set_others(4096, 0, 8192);
    let snapshot = snapshot(&[&one, &two]);
    one.ledger().publish(0, 0, 0, 0, 0);
    assert_eq!(snapshot.settings(), settings());
    assert_eq!(snapshot.supervisor(), 4711);
    assert_eq!((snapshot.total_bytes(), snapshot.total_peak_bytes()), (8192, 8192));
    assert_eq!(snapshot.sum(Counter::ZswpIn), 23);
    assert_eq!(snapshot.forms()["same"], 4);
    assert_eq!(snapshot.fault_counts().iter().sum::<u64>(), 1);
    let live: Vec<_> = snapshot.live().map(|seen| (seen.pid, seen.slot.stored_pages())).collect();
    assert_eq!(live, [(8, 5), (9, 5)]);
}

#[test]
fn onlookers_refuse_other_files() {
    let keeper = keeper();
    let sight = Sight::read(keeper.board_file()).unwrap();
    assert_eq!(sight.tree(), 5);
    let code = |file: BorrowedFd<'_>| Sight::read(file).err().and_then(|error| error.raw_os_error());
    let null = File::open("/dev/null").unwrap();
    assert_eq!(code(null.as_fd()), Some(libc::EPROTO));
    assert_eq!(code(keeper.ledger_file()), Some(libc::EPROTO));
    let mut snapshot = Snapshot::default();
    assert!(snapshot.add(sight, null.as_fd()).is_err());
    assert!(snapshot.add(Sight::read(keeper.board_file()).unwrap(), keeper.board_file()).is_err());
    assert!(snapshot.is_empty());
}
