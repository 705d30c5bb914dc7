//! The managed process: its pages, mappings and size, and the pages that stay.
//!
//! Invariants: the registrations are accessed under their lock, which is a leaf: its holder takes
//! only a block's lock. A mapping that may have changed is not evictable until the list has been
//! compared with /proc/self/maps again ([`Process::refresh`]).

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use address_space::{Accounts, AddressSpace, StartError};

use crate::config::Config;
use crate::files::ProcFiles;
use crate::gauge::Gauge;
use crate::kept::KeptPages;
use crate::quiesce::Quiesce;
use crate::registrations::Registrations;

/// What all parts of a pager work on. Each of them has it by a counted reference: with a chain of
/// owners, each dereferenced to the next, no function showed which part it uses.
pub(crate) struct Process {
    pub config: Config,
    pub accounts: &'static dyn Accounts,
    pub pages: AddressSpace,
    pub quiesce: Quiesce,
    registrations: Mutex<Registrations>,
    pub kept: KeptPages,
    pub files: ProcFiles,
    pub gauge: Gauge,
}

impl Process {
    /// # Errors
    /// [`StartError::System`] names the file that cannot be opened.
    pub fn new(
        config: Config,
        pages: AddressSpace,
        accounts: &'static dyn Accounts,
    ) -> Result<Self, StartError> {
        Ok(Process {
            registrations: Mutex::new(Registrations::new()),
            kept: KeptPages::new(config.kept),
            files: ProcFiles::open()?,
            gauge: Gauge::new(accounts, config.records),
            quiesce: Quiesce::default(),
            pages,
            accounts,
            config,
        })
    }

    pub fn registrations(&self) -> MutexGuard<'_, Registrations> {
        self.registrations.lock().expect("no panic while held")
    }

    /// Publishes this process's use. Returns the total of all processes.
    pub fn measure(&self) -> u64 {
        self.gauge.measure(&self.files.statm, &self.pages)
    }

    pub fn low_water(&self) -> u64 {
        self.gauge.low_water()
    }

    pub fn refresh(&self) {
        let mut registrations = self.registrations();
        registrations.note_changes(&self.pages);
        registrations.refresh(&self.files.maps, &self.pages, &self.config);
    }

    pub fn register(&self, range: Range<usize>) {
        let mut registrations = self.registrations();
        registrations.note_changes(&self.pages);
        if !registrations.register(&self.pages, range, !self.config.executable) {
            registrations.refresh(&self.files.maps, &self.pages, &self.config);
        }
    }

    /// Unregisters the list, and mappings that were moved or have grown since the last look: they
    /// are registered, but not in the list.
    pub fn unregister(&self) {
        let mut registrations = self.registrations();
        registrations.note_changes(&self.pages);
        registrations.refresh(&self.files.maps, &self.pages, &self.config);
        registrations.unregister_all(&self.pages);
    }

    pub fn manages(&self, range: Range<usize>) -> bool {
        let first = self.registrations().from(range.start);
        first.is_some_and(|known| known.start <= range.start && known.end >= range.end)
    }
}
