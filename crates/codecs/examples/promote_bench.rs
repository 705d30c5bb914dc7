//! What promotion to the second tier costs and yields: `promote_bench FILE...` with files of raw
//! pages.
//!
//! Objects of `auto` are promoted in batches of eight through the interface of `auto-t16h`, round
//! after round, until training has settled; the last round's bytes, and the least time of a round.

use std::time::Instant;

use acomp::{
    Algorithm, CompressRequest, Context, Object, Page, PromoteRequest, Registry, UnitResult, MAX_BATCH,
    PAGE_SIZE,
};

/// Pages of a file at most, in runs of sixteen spread over it.
const PAGES_MAX: usize = 1024;
const RUN: usize = 16;
const ROUNDS: usize = 60;

fn pages_of(file: &str) -> Vec<Page> {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let all = bytes.as_chunks::<PAGE_SIZE>().0;
    let step = all.len().div_ceil(PAGES_MAX);
    all.chunks(RUN).step_by(step).flatten().copied().collect()
}

fn store(context: &mut dyn Context, pages: &[Page]) -> Vec<Vec<u8>> {
    let mut space = [[0u8; PAGE_SIZE]; MAX_BATCH];
    let mut objects = Vec::new();
    for batch in pages.chunks(MAX_BATCH) {
        let sources: Vec<&Page> = batch.iter().collect();
        let mut outputs: Vec<&mut [u8]> = space[..batch.len()].iter_mut().map(|slot| &mut slot[..]).collect();
        let mut results: [UnitResult; MAX_BATCH] = [Ok(0); MAX_BATCH];
        context.compress(&mut CompressRequest {
            pages: &sources,
            unit_size: PAGE_SIZE,
            outputs: &mut outputs,
            results: &mut results[..batch.len()],
        });
        let made = space.iter().zip(&results[..batch.len()]);
        objects.extend(made.filter_map(|(space, result)| result.ok().map(|len| space[..len].to_vec())));
    }
    objects
}

/// Promotes everything once; the bytes that there are then, and how many objects became denser.
fn promote(tiers: &dyn Algorithm, context: &mut dyn Context, objects: &[Vec<u8>]) -> (usize, usize) {
    let mut space = [[0u8; PAGE_SIZE]; MAX_BATCH];
    let (mut bytes, mut promoted) = (0, 0);
    for batch in objects.chunks(MAX_BATCH) {
        let sources: [Object<'_>; MAX_BATCH] =
            std::array::from_fn(|n| batch.get(n).map_or(Object::default(), |object| Object::whole(object)));
        let mut results: [UnitResult; MAX_BATCH] = [Ok(0); MAX_BATCH];
        {
            let mut rooms = space.iter_mut();
            let mut outputs: [&mut [u8]; MAX_BATCH] = std::array::from_fn(|n| {
                let room = batch.get(n).map_or(0, |object| object.len().saturating_sub(32));
                &mut rooms.next().expect("a room each")[..room]
            });
            context.promote(&mut PromoteRequest {
                objects: &sources[..batch.len()],
                outputs: &mut outputs[..batch.len()],
                results: &mut results[..batch.len()],
            });
        }
        for ((object, space), result) in batch.iter().zip(&space).zip(results) {
            bytes += result.unwrap_or(object.len());
            if let Ok(len) = result {
                promoted += 1;
                tiers.forget(Object::whole(&space[..len]), 1);
            }
        }
    }
    (bytes, promoted)
}

fn main() {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    let tiers = registry.find("auto-t16h").expect("registered");
    println!("heap  objects  promoted %  bytes before  after  ratio  us an object");
    for file in std::env::args().skip(1) {
        let pages = pages_of(&file);
        let mut context = tiers.context().expect("memory");
        let objects = store(context.as_mut(), &pages);
        let (mut least, mut outcome) = (f64::MAX, (0, 0));
        for _ in 0..ROUNDS {
            let start = Instant::now();
            outcome = promote(&*tiers, context.as_mut(), &objects);
            least = least.min(start.elapsed().as_secs_f64() * 1e6 / objects.len() as f64);
        }
        let before: usize = objects.iter().map(Vec::len).sum();
        let name = std::path::Path::new(&file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        println!(
            "{name}  {}  {:.0}  {}  {}  {:.2}  {least:.2}",
            objects.len(),
            100.0 * outcome.1 as f64 / objects.len() as f64,
            before / objects.len(),
            outcome.0 / objects.len(),
            before as f64 / outcome.0 as f64,
        );
    }
}
