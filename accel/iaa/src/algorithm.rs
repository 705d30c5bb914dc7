//! `deflate-iaa` and `deflate-iaa-dynamic`.

use std::sync::Arc;

use acomp::{Algorithm, Context, ContextError, MAX_BATCH, UNIT_SIZE_MAX};
use idxd::emulated::Run;

use crate::context::IaaContext;
use crate::driver::Driver;
use crate::settings::SyncMode;

/// One of the two compressors over a driver.
pub struct Iaa {
    name: String,
    driver: Arc<Driver>,
    is_dynamic: bool,
}

impl Iaa {
    /// Compression with the fixed codes of Deflate: `deflate-iaa`.
    pub fn fixed(driver: Arc<Driver>) -> Self {
        Iaa { name: "deflate-iaa".to_owned(), driver, is_dynamic: false }
    }

    /// Compression with codes made for each unit: `deflate-iaa-dynamic`. Generation 2 needs one
    /// descriptor for units of a page; longer units, and generation 1, where the processor makes
    /// the codes in between, need two.
    pub fn dynamic(driver: Arc<Driver>) -> Self {
        Iaa { name: "deflate-iaa-dynamic".to_owned(), driver, is_dynamic: true }
    }

    /// Sets the name that the caller asked for.
    pub fn named(mut self, name: String) -> Self {
        self.name = name;
        self
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl Algorithm for Iaa {
    fn name(&self) -> &str {
        &self.name
    }

    fn batch_size(&self) -> usize {
        match self.driver.settings().sync_mode {
            SyncMode::Async => MAX_BATCH,
            SyncMode::Sync => 1,
        }
    }

    fn is_emulated(&self) -> bool {
        self.driver.is_emulated()
    }

    /// A fork copies emulated devices, which are memory, but not their engines' threads. A real
    /// queue's portal is bound to the address space that opened it.
    fn survives_fork(&self) -> bool {
        let machine = self.driver.machine();
        self.driver.is_emulated() && machine.is_some_and(|machine| machine.spec().run != Run::Threads)
    }

    /// Follows queues as they appear and disappear.
    fn maintain(&self) {
        self.driver.refresh();
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        self.context_for(UNIT_SIZE_MAX)
    }

    fn context_for(&self, unit_size: usize) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(IaaContext::new(Arc::clone(&self.driver), unit_size, self.is_dynamic)))
    }
}
