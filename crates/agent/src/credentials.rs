//! Rights that the program gives up, which the agent gives up, too.
//!
//! A process is no safer than its most powerful thread: code that takes over a program that was
//! root can write to the stack of any thread in its memory. The C library changes the rights of the
//! threads that it knows, and these it does not know. So when the program has less than the agent,
//! and cannot have it back ([`Rights::exceed`]), all of the agent ends but for the control thread,
//! with everything brought in ([`crate::retire`]); that thread takes the rights of a thread of the
//! program's; and it begins again as in a young process, with a place in the ledger, a swap file
//! and a key of the new user's.
//!
//! ```text
//!   program's thread    setresuid() by the C library, compares, asks ........ returns
//!   control thread                               looks at all, retire(), takes, replies, joins
//! ```
//!
//! Where no thread asks (system calls past the C library, programs without `preload`) the control
//! thread sees it when it looks, every [`LOOK_NS`] at most. Another effective user, to and fro, is
//! nothing that is given up: the saved one is still there.
//!
//! While any thread of the program's has what the agent has, so has the agent. What stays: the root
//! and working directories that the agent began with, and that a filter (seccomp) of a thread of
//! the program's does not bind it.

use std::sync::atomic::{AtomicU64, Ordering};

use doorway::rights::Rights;
use ledger::wire::Kind;
use sys::credentials::Credentials;
use sys::futex;

use crate::control_page::control_page;
use crate::{accounts, retire, threads};

/// Between looks without a question.
const LOOK_NS: u64 = 100_000_000;

fn rights(of: &Credentials) -> Rights {
    let three = |ids: [u32; 4]| [ids[0], ids[1], ids[2]];
    Rights { users: three(of.users), groups: three(of.groups), permitted: of.permitted }
}

/// Says what the calling thread, the control thread, may do.
pub fn say_own() {
    let own = Credentials::of(sys::threads::own());
    control_page().credentials.say(own.map(|(own, _)| rights(&own)));
}

/// Whether the program has given up for good what the agent has. Looks when a thread asks, and
/// every [`LOOK_NS`].
pub fn are_wanted() -> bool {
    static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
    let asked = control_page().credentials.asked.load(Ordering::Acquire);
    let is_asked = asked != control_page().credentials.answered.load(Ordering::Acquire);
    let now = sys::now_ns();
    if !is_asked && now.wrapping_sub(LOOKED_NS.load(Ordering::Relaxed)) < LOOK_NS {
        return false;
    }
    LOOKED_NS.store(now, Ordering::Relaxed);
    let exceeds = exceeds_program();
    if !exceeds {
        answer(asked);
    }
    exceeds
}

/// Wakes the threads that asked, up to a number.
fn answer(asked: u32) {
    let answered = &control_page().credentials.answered;
    if answered.swap(asked, Ordering::AcqRel) != asked {
        futex::wake(answered, i32::MAX);
    }
}

/// Whether the agent has what no thread of the program's has or can have back.
fn exceeds_program() -> bool {
    // Ordinary users' programs are not looked at.
    let Some(agents) = control_page().credentials.agents().filter(Rights::can_shrink) else { return false };
    let exceeds = |of: &Credentials| agents.exceed(&rights(of));
    // Mostly that is all.
    if Credentials::of_first().is_some_and(|(first, is_alive)| is_alive && !exceeds(&first)) {
        return false;
    }
    matches!(find(|of| !exceeds(of)), Ok(None)) && matches!(find(|_| true), Ok(Some(_)))
}

/// The rights of the first thread of the program's that is alive and has such as `is_wanted`.
///
/// # Errors
/// When none was found among those that could be listed, and not all could.
fn find(is_wanted: impl Fn(&Credentials) -> bool) -> std::io::Result<Option<Credentials>> {
    threads::settle();
    let (own, mut found) = (sys::threads::own(), None);
    let are_all = sys::threads::for_each(|thread| {
        if found.is_none() && thread != own && !threads::is_own(thread) {
            found =
                Credentials::of(thread).filter(|(of, is_alive)| *is_alive && is_wanted(of)).map(|(of, _)| of);
        }
    });
    match found {
        None if !are_all => Err(std::io::Error::other("its threads cannot be listed")),
        found => Ok(found),
    }
}

/// Has the agent end but for the calling thread, and gives that the program's rights. False when
/// that could not be: there must be no agent then.
pub fn take() -> bool {
    let asked = control_page().credentials.asked.load(Ordering::Acquire);
    control_page().credentials.say(None);
    retire::retire();
    let taken = match find(|_| true) {
        Ok(Some(programs)) => programs.take(),
        // It is about to end.
        Ok(None) => return false,
        Err(error) => Err(error),
    };
    if let Err(error) = taken {
        let text = pager::FixedText::new(format_args!(
            "paging ends here: it gave up rights, and its pager cannot do without them: {error}"
        ));
        let _ = accounts::tell(Kind::Unmanaged, text.as_str());
        return false;
    }
    answer(asked);
    true
}
