//! The control thread of a forked child, which takes over the pages that its parent left out.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use doorway::control_page::RESTART;
use pager::Pager;
use sys::{process, thread};

use crate::accounts::{self, JoinError, Ledgered};
use crate::control::{is_alive, live, set_alive, share_figures, socket, stand_apart, Phase};
use crate::control_page::{control_page, is_set};
use crate::{broken, channel, fork, paging, retire, segments, swap, threads};

/// The control thread of a forked child. The program's thread makes it from the spare that
/// [`keep_spare`] prepared. `channel` is the connection to the parent's control thread, or
/// [`RESTART`].
extern "C" fn begin_child(channel: usize) {
    let parent = process::handle(control_page().agent.load(Ordering::Acquire) as i32).ok();
    threads::forget();
    channel::forget();
    segments::forget();
    stand_apart();
    keep_spare();
    if channel == RESTART {
        paging::forget_pager();
        retire::unmap_segments();
        set_alive(true);
        live(Phase::Joining)
    }
    live(inherit(channel as i32, parent))
}

/// Prepares the stack and thread-local storage of a forked child's control thread.
pub fn keep_spare() {
    let Ok((stack, pointer)) = threads::prepare(begin_child) else { return };
    let spare = &control_page().forks.spare;
    spare[1].store(pointer, Ordering::Relaxed);
    spare[0].store(stack, Ordering::Release);
}

/// Takes over the parent's pages.
fn inherit(channel: i32, parent: Option<OwnedFd>) -> Phase {
    // Frees the numbers that descriptors have in the parent.
    let above = |number| match thread::renumber_above(number, fork::numbers_end()) {
        Ok(above) => above,
        Err(error) => end_child(format_args!("no descriptor is left: {error}")),
    };
    let (channel, parent) = (above(channel), parent.map(|handle| above(handle.into_raw_fd())));
    thread::close_all_files_but([channel, parent.unwrap_or(channel)]);
    // SAFETY: just opened, and closed by nothing else.
    let parent = parent.map(|handle| unsafe { OwnedFd::from_raw_fd(handle) });
    thread::renounce_new_rights();
    thread::name(c"uzswap");
    thread::hurry();
    channel::send(channel, channel::TAKE, &[], None);
    let kept = match channel::receive_from_parent(channel, parent.as_ref()) {
        Some(message) if message.word() == channel::INHERITS && message.descriptors[1] >= 0 => message,
        Some(message) if message.word() == channel::COMPLETE => {
            // Everything is in place, and the parent's tables are no longer used.
            paging::forget_pager();
            retire::unmap_segments();
            set_alive(!fork::expects_filter());
            fork::taken();
            return if is_alive() { Phase::Joining } else { Phase::Retired };
        }
        // The parent held this process's pages.
        _ => end_by_parent(),
    };
    let mut given = kept.descriptors;
    let pager = paging::pager().expect("the parent had one");
    if pager.store().swap_file().is_some() {
        inherit_swap(channel, parent.as_ref(), &mut given);
    }
    if is_set(&control_page().forks.outside) {
        inherit_root(channel, parent.as_ref());
    }
    channel::close(channel);
    drop(parent);
    let accounts = paging::accounts().expect("set together with the pager");
    accounts.leave();
    if let Err(error) = pager.inherit(given[0], given[1], kept.rest()) {
        end_child(format_args!("it cannot go on with its parent's memory: {error}"));
    }
    swap::count_threads(pager);
    if let Err(error) = paging::start_threads(pager) {
        end_child(format_args!("no thread: {error}"));
    }
    fork::keep();
    set_alive(true);
    fork::taken();
    rejoin(pager, accounts)
}

fn inherit_swap(channel: i32, parent: Option<&OwnedFd>, given: &mut [i32; 2]) {
    let inherited = match channel::receive_from_parent(channel, parent) {
        Some(told) if told.word() == channel::SWAP && told.descriptors[0] >= 0 => {
            channel::close(told.descriptors[1]);
            swap::inherit(told.rest().first().copied().unwrap_or(0), told.descriptors[0], given)
        }
        _ => end_by_parent(),
    };
    if let Err(error) = inherited {
        end_child(format_args!("it cannot go on with the swap file: {error}"));
    }
}

fn inherit_root(channel: i32, parent: Option<&OwnedFd>) {
    let root = channel::receive_from_parent(channel, parent).filter(|told| told.word() == channel::ROOT);
    let entered = root.is_some_and(|told| {
        let entered = fork::enter_root(told.descriptors[0]);
        told.descriptors.into_iter().for_each(channel::close);
        entered
    });
    if !entered {
        end_child(format_args!("it cannot leave its root directory"));
    }
    control_page().forks.outside.store(0, Ordering::Release);
}

/// Takes a place of its own in the ledger.
fn rejoin(pager: &'static Pager, accounts: &'static Ledgered) -> Phase {
    match accounts.rejoin(socket()) {
        Ok(()) => {
            swap::note_place(accounts.owner());
            channel::lend();
            share_figures(accounts);
            accounts.keep(pager.descriptor());
            accounts.slot().into_iter().for_each(ledger::Slot::set_managed);
            Phase::Managing(pager, accounts)
        }
        Err(JoinError::NoSupervisor) => accounts::kill_process(),
        // The pager ends, as in a process that gives up rights; there may be another one.
        Err(JoinError::Interrupted) => Phase::Yielding,
        Err(JoinError::Refused | JoinError::NoDescriptor) => {
            fork::note_stopped();
            retire::retire();
            Phase::Retired
        }
    }
}

fn end_by_parent() -> ! {
    end_child(format_args!("its parent's pager was killed before it had handed the memory over"))
}

/// Ends a forked child whose pages cannot be brought in.
fn end_child(why: std::fmt::Arguments<'_>) -> ! {
    broken::tell(pager::FixedText::new(format_args!("a forked child is ended: {why}")).as_str());
    accounts::kill_process()
}
