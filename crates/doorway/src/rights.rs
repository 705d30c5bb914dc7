//! The rights of a thread, as far as it can regain them.

use core::sync::atomic::Ordering;

use crate::control_page::Credentials;

/// Bits of capabilities(7) that permit any group, and any user.
const SETGID: u64 = 1 << 6;
const SETUID: u64 = 1 << 7;

/// Users, groups and capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// Real, effective, saved.
    pub users: [u32; 3],
    /// Real, effective, saved.
    pub groups: [u32; 3],
    /// Permitted capabilities.
    pub permitted: u64,
}

impl Rights {
    /// Whether there is something to give up: another user or group, or a capability.
    pub fn can_shrink(&self) -> bool {
        let differ = |ids: [u32; 3]| ids != [ids[0]; 3];
        self.permitted != 0 || differ(self.users) || differ(self.groups)
    }

    /// Whether a thread with `other`'s rights lacks some of these and cannot regain them.
    ///
    /// Supplementary groups are not compared: only CAP_SETGID changes them, and a thread that has
    /// given up groups for good has lost it.
    pub fn exceed(&self, other: &Rights) -> bool {
        let beyond = |own: [u32; 3], theirs: [u32; 3]| own.iter().any(|id| !theirs.contains(id));
        self.permitted & !other.permitted != 0
            || other.permitted & SETUID == 0 && beyond(self.users, other.users)
            || other.permitted & SETGID == 0 && beyond(self.groups, other.groups)
    }
}

impl Credentials {
    /// The agent's rights, `None` until published.
    pub fn agents(&self) -> Option<Rights> {
        let is_known = self.is_known.load(Ordering::Acquire) != 0;
        let three =
            |ids: &[core::sync::atomic::AtomicU32; 3]| ids.each_ref().map(|id| id.load(Ordering::Relaxed));
        let permitted = self.permitted.load(Ordering::Relaxed);
        is_known.then(|| Rights { users: three(&self.users), groups: three(&self.groups), permitted })
    }

    /// Publishes the agent's rights; `None` while they change.
    pub fn say(&self, rights: Option<Rights>) {
        self.is_known.store(0, Ordering::Release);
        let Some(Rights { users, groups, permitted }) = rights else { return };
        for (to, from) in self.users.iter().chain(&self.groups).zip(users.into_iter().chain(groups)) {
            to.store(from, Ordering::Relaxed);
        }
        self.permitted.store(permitted, Ordering::Relaxed);
        self.is_known.store(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_page::ControlPage;

    const ROOT: Rights = Rights { users: [0; 3], groups: [0; 3], permitted: 0xff };

    fn with(users: [u32; 3], groups: [u32; 3], permitted: u64) -> Rights {
        Rights { users, groups, permitted }
    }

    #[test]
    fn rights_that_can_be_regained_are_not_given_up() {
        assert!(!ROOT.exceed(&with([0, 1000, 0], [0; 3], 0xff)));
        assert!(!ROOT.exceed(&with([1000; 3], [1000; 3], 0xff)), "it may become anyone");
        assert!(ROOT.exceed(&with([1000; 3], [0; 3], 0)));
        assert!(ROOT.exceed(&with([0; 3], [0; 3], 0x7f)));
        let user = with([1000; 3], [1000; 3], 0);
        assert!(!user.exceed(&user) && !user.can_shrink() && ROOT.can_shrink());
        assert!(with([5, 6, 5], [1; 3], 0).can_shrink() && with([5; 3], [1, 2, 1], 0).can_shrink());
        assert!(!with([5, 6, 5], [1; 3], 0).exceed(&with([6, 6, 5], [1; 3], 0)));
        assert!(with([5, 6, 5], [1; 3], 0).exceed(&with([6; 3], [1; 3], 0)));
        assert!(with([5; 3], [1, 2, 2], 0).exceed(&with([5; 3], [1; 3], 0)));
    }

    #[test]
    fn rights_that_the_agent_reports_are_read() {
        static CONTROL_PAGE: ControlPage = ControlPage::new();
        assert_eq!(CONTROL_PAGE.credentials.agents(), None);
        let rights = with([1, 2, 3], [4, 5, 6], 7);
        CONTROL_PAGE.credentials.say(Some(rights));
        assert_eq!(CONTROL_PAGE.credentials.agents(), Some(rights));
        CONTROL_PAGE.credentials.say(None);
        assert_eq!(CONTROL_PAGE.credentials.agents(), None);
    }
}
