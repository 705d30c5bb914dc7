//! The program beside its pages: its mappings, its size, and the pages that stay.
//!
//! Invariants: the registrations are accessed under their lock, which is a leaf: its holder takes
//! only a block's lock. A mapping that may have changed is not evictable until the list has been
//! compared with /proc/self/maps again ([`Program::refresh`]).

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use address_space::{Accounts, AddressSpace, StartError};

use crate::config::Config;
use crate::files::ProcFiles;
use crate::gauge::Gauge;
use crate::kept::KeptPages;
use crate::registrations::Registrations;

pub(crate) struct Program {
    registrations: Mutex<Registrations>,
    pub kept: KeptPages,
    pub files: ProcFiles,
    pub gauge: Gauge,
}

impl Program {
    /// # Errors
    /// [`StartError::System`] names the file that cannot be opened.
    pub fn new(config: &Config, accounts: &'static dyn Accounts) -> Result<Self, StartError> {
        Ok(Program {
            registrations: Mutex::new(Registrations::new()),
            kept: KeptPages::new(config.kept),
            files: ProcFiles::open()?,
            gauge: Gauge::new(accounts, config.records),
        })
    }

    pub fn registrations(&self) -> MutexGuard<'_, Registrations> {
        self.registrations.lock().expect("no panic while held")
    }

    pub fn measure(&self, pages: &AddressSpace) -> u64 {
        self.gauge.measure(&self.files.statm, pages)
    }

    pub fn refresh(&self, pages: &AddressSpace, config: &Config) {
        let mut registrations = self.registrations();
        registrations.note_changes(pages);
        registrations.refresh(&self.files.maps, pages, config);
    }

    pub fn register(&self, pages: &AddressSpace, range: Range<usize>, config: &Config) {
        let mut registrations = self.registrations();
        registrations.note_changes(pages);
        if !registrations.register(pages, range, !config.executable) {
            registrations.refresh(&self.files.maps, pages, config);
        }
    }

    /// Unregisters the list, and mappings that were moved or have grown since the last look: they
    /// are registered, but not in the list.
    pub fn unregister(&self, pages: &AddressSpace, config: &Config) {
        let mut registrations = self.registrations();
        registrations.note_changes(pages);
        registrations.refresh(&self.files.maps, pages, config);
        registrations.unregister_all(pages);
    }

    pub fn manages(&self, range: Range<usize>) -> bool {
        let first = self.registrations().from(range.start);
        first.is_some_and(|known| known.start <= range.start && known.end >= range.end)
    }
}
