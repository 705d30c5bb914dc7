//! No compression: units are stored raw, for comparison and for data known not to shrink.

use std::sync::Arc;

use acomp::{Algorithm, Context, ContextError, Registry, Software, UnitCodec, UnitError, UnitResult};

/// Adds the family `none` to `registry`.
pub fn register(registry: &mut Registry) {
    registry.register("none", "none", |parameter| match parameter {
        None => Ok(Arc::new(NoCompression)),
        Some(_) => Err("it has no parameter".to_owned()),
    });
}

struct NoCompression;

impl Algorithm for NoCompression {
    fn name(&self) -> &str {
        "none"
    }

    fn keeps_raw(&self) -> bool {
        true
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(Software::new(Copy)))
    }

    fn context_for(&self, unit_size: usize) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(Software::for_units(Copy, unit_size)))
    }
}

struct Copy;

impl UnitCodec for Copy {
    fn compress_unit(&mut self, _unit: &[u8], _output: &mut [u8]) -> UnitResult {
        Err(UnitError::NoSpace)
    }

    fn decompress_unit(&mut self, object: &[u8], output: &mut [u8]) -> Result<(), UnitError> {
        if object.len() != output.len() {
            return Err(UnitError::Failed);
        }
        output.copy_from_slice(object);
        Ok(())
    }
}
