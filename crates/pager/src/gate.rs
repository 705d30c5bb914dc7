//! Reports of the gate (see `fork_session`) that no thread attends to.

use sys::userfaultfd::{Message, MESSAGES_MAX};

use crate::sync::Userfaultfd;

/// Reads them: a fork past the C library, while another one was attended to, reports to every
/// userfaultfd that it copied, and its thread waits until each report is read. Until then the
/// kernel lets no page in.
pub(crate) fn dismiss_reports(gate: Option<Userfaultfd>) {
    let Some(gate) = gate else { return };
    let mut messages = [Message::Remove { start: 0, end: 0 }; MESSAGES_MAX];
    while gate.read(&mut messages, 1) == 1 {
        if let Message::Fork { descriptor } = messages[0] {
            Userfaultfd::from_descriptor(descriptor).close();
        }
    }
}
