//! What a pager knows of the program beside its pages: its mappings, its size, the pages that stay.
//!
//! Invariants: the list of registrations is read and changed under its lock, which is a leaf: its
//! holder takes no other but a block's. A mapping whose place may have changed is not evictable
//! until the list has been compared with /proc/self/maps again ([`Program::refresh`]).

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use crate::accounts::Accounts;
use crate::config::{Config, StartError};
use crate::files::ProcFiles;
use crate::gauge::Gauge;
use crate::kept::KeptPages;
use crate::pages::Pages;
use crate::registrations::Registrations;

/// The program, beside its pages.
pub(crate) struct Program {
    registrations: Mutex<Registrations>,
    kept: KeptPages,
    files: ProcFiles,
    gauge: Gauge,
}

impl Program {
    /// Opens the files. Nothing is registered or measured yet.
    ///
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

    /// The list of registrations, locked.
    pub fn registrations(&self) -> MutexGuard<'_, Registrations> {
        self.registrations.lock().expect("no panic while held")
    }

    /// The same list for those who do not wait for it, or hold it for one look only.
    pub fn registrations_lock(&self) -> &Mutex<Registrations> {
        &self.registrations
    }

    /// Pages that stay in memory.
    pub fn kept(&self) -> &KeptPages {
        &self.kept
    }

    /// Files of /proc.
    pub fn files(&self) -> &ProcFiles {
        &self.files
    }

    /// The process's use.
    pub fn gauge(&self) -> &Gauge {
        &self.gauge
    }

    /// Reads the process's use from the kernel and publishes it; returns the total of all
    /// processes.
    pub fn measure(&self, pages: &Pages) -> u64 {
        self.gauge.measure(&self.files.statm, pages)
    }

    /// Looks at the mappings again and registers new ones.
    pub fn refresh(&self, pages: &Pages, config: &Config) {
        let mut registrations = self.registrations();
        registrations.note_changes(pages);
        registrations.refresh(&self.files.maps, pages, config);
    }

    /// Registers a mapping that the program has just made.
    pub fn register(&self, pages: &Pages, range: Range<usize>, config: &Config) {
        let mut registrations = self.registrations();
        registrations.note_changes(pages);
        if !registrations.register(pages, range, !config.executable) {
            registrations.refresh(&self.files.maps, pages, config);
        }
    }

    /// Unregisters all that is in the list, and all that has been moved or has grown since the last
    /// look: that is registered, too, and not in the list.
    pub fn unregister(&self, pages: &Pages, config: &Config) {
        let mut registrations = self.registrations();
        registrations.note_changes(pages);
        registrations.refresh(&self.files.maps, pages, config);
        registrations.unregister_all(pages);
    }

    /// Whether a range is registered and its pages can go out, as of the last look at the mappings.
    pub fn manages(&self, range: Range<usize>) -> bool {
        let first = self.registrations().from(range.start);
        first.is_some_and(|known| known.start <= range.start && known.end >= range.end)
    }
}
