//! Compressors of C libraries, with one number as their parameter: `zstd`, `zstd:3`.

use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::sync::Arc;

use acomp::{Algorithm, Context, ContextError, Registry, UNIT_SIZE_MAX};

/// Makes a context of this level for units of this size, or says why it cannot.
pub(crate) type Make = fn(c_int, usize) -> Result<Box<dyn Context>, String>;

/// Adds `family`, whose `usage` names its parameter. `what` is the parameter in messages.
pub(crate) fn register(
    registry: &mut Registry,
    (family, usage, what): (&'static str, &'static str, &'static str),
    range: RangeInclusive<c_int>,
    default: c_int,
    make: Make,
) {
    registry.register(family, usage, move |parameter| {
        let (name, level) = match parameter.map(str::parse) {
            None => (family.to_owned(), default),
            Some(Ok(level)) if range.contains(&level) => (format!("{family}:{level}"), level),
            Some(_) => {
                let (min, max, text) = (range.start(), range.end(), parameter.unwrap_or_default());
                return Err(format!("the {what} is {min} to {max}, not {text:?}"));
            }
        };
        Ok(Arc::new(Leveled { name, level, make }))
    });
}

struct Leveled {
    name: String,
    level: c_int,
    make: Make,
}

impl Algorithm for Leveled {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        self.context_for(UNIT_SIZE_MAX)
    }

    fn context_for(&self, unit_size: usize) -> Result<Box<dyn Context>, ContextError> {
        (self.make)(self.level, unit_size)
            .map_err(|reason| ContextError { algorithm: self.name.clone(), reason })
    }
}
