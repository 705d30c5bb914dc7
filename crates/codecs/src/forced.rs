//! Families whose parameter forces an instruction set: `auto`, `auto:avx2`.

use std::sync::Arc;

use acomp::{Algorithm, Registry};
use pagecodec::Isa;

/// Adds `family`. `make` gets the full name and the instruction set, by default the best.
pub(crate) fn register<A: Algorithm + 'static>(
    registry: &mut Registry,
    family: &'static str,
    usage: &'static str,
    make: fn(String, Isa) -> A,
) {
    registry.register(family, usage, move |parameter| {
        let isa = match parameter {
            None => Isa::best(),
            Some(name) => Isa::by_name(name).ok_or_else(|| format!("no instruction set {name:?}"))?,
        };
        if !isa.is_available() {
            return Err(format!("this machine lacks {isa}"));
        }
        let name = parameter.map_or_else(|| family.to_owned(), |name| format!("{family}:{name}"));
        Ok(Arc::new(make(name, isa)))
    });
}
