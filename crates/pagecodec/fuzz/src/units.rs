//! Objects of crate `codecs`, as the store passes them: of one or several pages and pieces.

use std::cell::RefCell;

use acomp::{Context, DecompressRequest, Object, Registry, UnitError, PAGE_SIZE};

/// Compressors under test. Those of a group must return the same.
const GROUPS: [&[&str]; 7] = [
    &["auto:portable", "auto:avx2", "auto:avx512"],
    &["t16h:portable", "t16h:avx2", "t16h:avx512"],
    &["t16:portable", "t16:avx2", "t16:avx512"],
    &["lz4"],
    &["zstd"],
    &["deflate"],
    &["none"],
];

/// Number of groups.
pub const KINDS: usize = GROUPS.len();
/// The most pages of a unit, as a power of two.
pub const LOG2_PAGES_MAX: usize = 4;

/// Returns the compressor of a group with the instruction set that suits the machine.
pub fn name(kind: usize) -> &'static str {
    GROUPS[kind][0].split(':').next().expect("a name")
}

thread_local! {
    static CONTEXTS: RefCell<Vec<Vec<Box<dyn Context>>>> = RefCell::new(contexts());
}

fn contexts() -> Vec<Vec<Box<dyn Context>>> {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    let open = |name: &&str| {
        // Skips instruction sets that the machine lacks.
        let found = registry.find(name).ok()?;
        Some(found.context_for(PAGE_SIZE << LOG2_PAGES_MAX).expect("memory"))
    };
    GROUPS.iter().map(|group| group.iter().filter_map(open).collect()).collect()
}

/// Decompresses `object`, cut in two at `cut`, into `pages` pages with all compressors of a group.
pub fn check(kind: usize, pages: usize, cut: usize, object: &[u8]) {
    // Pieces of exactly their length.
    let (head, tail) = object.split_at(cut);
    let (head, tail): (Box<[u8]>, Box<[u8]>) = (head.into(), tail.into());
    CONTEXTS.with_borrow_mut(|contexts| {
        let mut first = None;
        for context in &mut contexts[kind] {
            let mut output = vec![0xa5; pages * PAGE_SIZE];
            let mut results = [Err(UnitError::Failed)];
            context.decompress(&mut DecompressRequest {
                objects: &[Object { head: &head, tail: &tail }],
                outputs: &mut [&mut output],
                results: &mut results,
            });
            assert!(results[0].is_err() || results[0] == Ok(output.len()), "a part of the unit");
            let outcome = results[0].map(|_| output);
            assert!(*first.get_or_insert_with(|| outcome.clone()) == outcome, "{}", GROUPS[kind][0]);
        }
    });
    // Counting forms and dropping the object also read it.
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    let algorithm = registry.find(name(kind)).expect("registered");
    let whole = Object { head: &head, tail: &tail };
    let mut counts = vec![0; algorithm.forms().len()];
    algorithm.count_forms(whole, pages, &mut counts);
    algorithm.forget(whole, pages);
}
