//! A compressor for a store that must refuse nothing: units that do not shrink are kept
//! uncompressed.

use std::sync::Arc;

use uzswap::acomp::{Algorithm, Context, ContextError, Object, Tiers};

pub(crate) struct KeepsRaw(pub(crate) Arc<dyn Algorithm>);

impl Algorithm for KeepsRaw {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn batch_size(&self) -> usize {
        self.0.batch_size()
    }

    fn is_emulated(&self) -> bool {
        self.0.is_emulated()
    }

    fn keeps_raw(&self) -> bool {
        true
    }

    fn keeps_account(&self) -> bool {
        self.0.keeps_account()
    }

    fn forget(&self, object: Object<'_>, pages: usize) {
        self.0.forget(object, pages);
    }

    fn tiers(&self) -> Option<&dyn Tiers> {
        self.0.tiers()
    }

    fn forms(&self) -> &'static [&'static str] {
        self.0.forms()
    }

    fn count_forms(&self, object: Object<'_>, pages: usize, counts: &mut [u32]) {
        self.0.count_forms(object, pages, counts);
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        self.0.context()
    }

    fn context_for(&self, unit_size: usize) -> Result<Box<dyn Context>, ContextError> {
        self.0.context_for(unit_size)
    }
}
