//! Gives up the agent's rights when the program gives up its own.
//!
//! A process is no safer than any that shares its memory: code that takes over a program that was
//! root can write to the agent's stacks. The C library changes the rights of the threads it knows,
//! and it does not know the agent's. So when the program has less than the agent
//! and cannot regain it ([`Rights::exceed`]), the agent brings everything in and ends all its
//! threads but the control thread ([`crate::retire`]). The control thread takes the rights of a
//! thread of the program and begins again as in a young process, with a place in the ledger, a swap
//! file and a key of the new user.
//!
//! ```text
//!   program's thread    setresuid() by the C library, compares, asks ........ returns
//!   control thread                               looks at all, retire(), takes, replies, joins
//! ```
//!
//! Where no thread asks (system calls past the C library, programs without `preload`), the control
//! thread looks every [`LOOK_NS`]. A temporary change of the effective user gives up nothing: the
//! saved user remains.
//!
//! The agent keeps a right while any thread of the program has it. It also keeps its root and
//! working directories, and seccomp filters of the program's threads do not bind it.

use std::sync::atomic::Ordering;

use doorway::rights::Rights;
use ledger::wire::Kind;
use sys::credentials::Credentials;
use sys::futex;

use crate::control_page::control_page;
use crate::state::AGENT;
use crate::{accounts, retire};

/// Interval between looks without a request.
const LOOK_NS: u64 = 100_000_000;

fn rights(of: &Credentials) -> Rights {
    let three = |ids: [u32; 4]| [ids[0], ids[1], ids[2]];
    Rights { users: three(of.users), groups: three(of.groups), permitted: of.permitted }
}

/// Publishes the rights of the calling thread, the control thread.
pub fn say_own() {
    let own = Credentials::of(sys::threads::own());
    control_page().credentials.say(own.map(|(own, _)| rights(&own)));
}

/// Whether the program has given up a right of the agent. Looks on request and every [`LOOK_NS`].
pub fn are_wanted() -> bool {
    let asked = control_page().credentials.asked.load(Ordering::Acquire);
    let is_asked = asked != control_page().credentials.answered.load(Ordering::Acquire);
    let now = sys::now_ns();
    if !is_asked && now.wrapping_sub(AGENT.looks.credentials_ns.load(Ordering::Relaxed)) < LOOK_NS {
        return false;
    }
    AGENT.looks.credentials_ns.store(now, Ordering::Relaxed);
    let exceeds = exceeds_program();
    if !exceeds {
        reply(asked);
    }
    exceeds
}

/// Wakes the threads whose requests are up to number `asked`.
fn reply(asked: u32) {
    let answered = &control_page().credentials.answered;
    if answered.swap(asked, Ordering::AcqRel) != asked {
        futex::wake(answered, i32::MAX);
    }
}

/// Whether the agent has a right that no thread of the program has or can regain.
fn exceeds_program() -> bool {
    // Programs of ordinary users have nothing to give up.
    let Some(agents) = control_page().credentials.agents().filter(Rights::can_shrink) else { return false };
    let exceeds = |of: &Credentials| agents.exceed(&rights(of));
    // Usually the first thread decides it.
    if Credentials::of_first().is_some_and(|(first, is_alive)| is_alive && !exceeds(&first)) {
        return false;
    }
    matches!(find(|of| !exceeds(of)), Ok(None)) && matches!(find(|_| true), Ok(Some(_)))
}

/// Returns the rights of the program's first living thread whose rights satisfy `is_wanted`. Fails
/// if none was found and some threads could not be listed.
fn find(is_wanted: impl Fn(&Credentials) -> bool) -> std::io::Result<Option<Credentials>> {
    let mut found = None;
    let are_all = sys::threads::for_each(|thread| {
        if found.is_none() {
            found =
                Credentials::of(thread).filter(|(of, is_alive)| *is_alive && is_wanted(of)).map(|(of, _)| of);
        }
    });
    match found {
        None if !are_all => Err(std::io::Error::other("its threads cannot be listed")),
        found => Ok(found),
    }
}

/// Ends the agent except for the calling thread, which takes the program's rights. Returns false on
/// failure: there must be no agent then.
pub fn take() -> bool {
    let asked = control_page().credentials.asked.load(Ordering::Acquire);
    control_page().credentials.say(None);
    retire::retire();
    let taken = match find(|_| true) {
        Ok(Some(programs)) => programs.take(),
        // The process is about to end.
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
    reply(asked);
    true
}
