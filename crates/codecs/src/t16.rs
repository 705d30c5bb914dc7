//! T16 behind [`acomp`], in batches of eight. A unit of one page is one T16 object;
//! The module `unit` describes larger units.

use acomp::{
    Algorithm, CompressRequest, Context, ContextError, DecompressRequest, Page, Registry, UnitError,
    MAX_BATCH, PAGE_SIZE, UNIT_SIZE_MAX,
};
use pagecodec::t16::{self, EncodeError, Encoder};
use pagecodec::Isa;

use crate::forced;
use crate::unit;

/// Adds the family `t16` to `registry`. Its parameter forces an instruction set.
pub fn register(registry: &mut Registry) {
    forced::register(registry, "t16", "t16[:portable|:sse4|:avx2|:avx512|:neon]", |name, isa| T16 {
        name,
        isa,
    });
}

struct T16 {
    name: String,
    isa: Isa,
}

impl Algorithm for T16 {
    fn name(&self) -> &str {
        &self.name
    }

    fn batch_size(&self) -> usize {
        MAX_BATCH
    }

    fn context(&self) -> Result<Box<dyn Context>, ContextError> {
        Ok(Box::new(T16Context {
            encoder: Encoder::with_isa(self.isa),
            isa: self.isa,
            bounce: vec![0; UNIT_SIZE_MAX].into_boxed_slice(),
        }))
    }
}

struct T16Context {
    encoder: Encoder,
    isa: Isa,
    bounce: Box<[u8]>,
}

impl Context for T16Context {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        request.assert_valid();
        if request.unit_size == PAGE_SIZE {
            let mut results = [Err(EncodeError::NoSpace(0)); MAX_BATCH];
            let results = &mut results[..request.pages.len()];
            self.encoder.encode_batch(request.pages, request.outputs, results);
            for (slot, result) in request.results.iter_mut().zip(results) {
                *slot = result.map_err(|_| UnitError::NoSpace);
            }
            return;
        }
        let encode = |page: &Page, _: &Page, output: &mut [u8]| {
            self.encoder.encode(page, output).map_err(|_| UnitError::NoSpace)
        };
        unit::compress(request, encode, |_, _| ());
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        unit::decompress(request, &mut self.bounce, |bytes, page| {
            t16::decode(self.isa, bytes, page).map_err(|_| UnitError::Failed)
        });
    }
}

#[cfg(test)]
mod tests {
    use acomp::{Object, UnitResult};

    use std::sync::Arc;

    use super::*;

    /// Pages of pointers, small integers and a few random words. The last page is all random.
    fn pages(count: usize) -> Vec<Page> {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state ^ state >> 33
        };
        (0..count)
            .map(|number| {
                let mut page = [0u8; PAGE_SIZE];
                for word in page.as_chunks_mut::<8>().0 {
                    let value = match random() % 16 {
                        _ if number + 1 == count => random() << 32 | random() >> 32,
                        0..6 => 0,
                        6..12 => 0x7f00_1234_0000 + random() % 4096 * 16,
                        12..15 => random() % 100,
                        _ => random(),
                    };
                    *word = value.to_le_bytes();
                }
                page
            })
            .collect()
    }

    fn algorithm(name: &str) -> Arc<dyn Algorithm> {
        let mut registry = Registry::new();
        register(&mut registry);
        registry.find(name).expect("registered")
    }

    /// Returns the results of compression.
    fn round_trip(count: usize, unit_pages: usize, room: usize) -> Vec<UnitResult> {
        let algorithm = algorithm("t16");
        assert_eq!(algorithm.batch_size(), 8);
        let mut context = algorithm.context().expect("context");
        let pages = pages(count);
        let refs: Vec<&Page> = pages.iter().collect();
        let units = count.div_ceil(unit_pages);
        let unit_len = |unit: usize| (count - unit * unit_pages).min(unit_pages) * PAGE_SIZE;
        let mut buffers: Vec<Vec<u8>> = (0..units).map(|unit| vec![0u8; room.min(unit_len(unit))]).collect();
        let mut results = vec![Err(UnitError::Failed); units];
        {
            let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
            context.compress(&mut CompressRequest {
                pages: &refs,
                unit_size: unit_pages * PAGE_SIZE,
                outputs: &mut outputs,
                results: &mut results,
            });
        }
        for split in [0, 1, 50] {
            for unit in (0..units).filter(|&unit| results[unit].is_ok()) {
                let len = results[unit].expect("filtered");
                let (head, tail) = buffers[unit][..len].split_at(split);
                let object = if split == 0 { Object::whole(tail) } else { Object { head, tail } };
                let range = unit * unit_pages..count.min((unit + 1) * unit_pages);
                let mut back = vec![0u8; range.len() * PAGE_SIZE];
                let mut result = [Err(UnitError::Failed)];
                context.decompress(&mut DecompressRequest {
                    objects: &[object],
                    outputs: &mut [&mut back],
                    results: &mut result,
                });
                assert_eq!(result[0], Ok(back.len()));
                assert!(back == pages[range].as_flattened());
            }
        }
        results
    }

    #[test]
    fn a_batch_of_pages_comes_back_and_the_random_one_is_refused() {
        let results = round_trip(8, 1, PAGE_SIZE);
        assert!(results[..7].iter().all(|result| matches!(result, Ok(len) if *len < 2000)));
        assert_eq!(results[7], Err(UnitError::NoSpace));
    }

    #[test]
    fn units_of_several_pages_come_back() {
        let results = round_trip(21, 4, 4 * PAGE_SIZE);
        assert_eq!(results.len(), 6);
        assert!(results[..5].iter().all(|result| matches!(result, Ok(len) if *len < 4 * 2000)));
        assert_eq!(results[5], Err(UnitError::NoSpace));
        // The unit stores a random page among others raw.
        let results = round_trip(4, 4, 4 * PAGE_SIZE);
        assert!(matches!(results[0], Ok(len) if len > PAGE_SIZE && len < 3 * PAGE_SIZE));
    }

    #[test]
    fn a_small_output_is_no_space() {
        assert!(round_trip(8, 1, 100).iter().all(|result| *result == Err(UnitError::NoSpace)));
        assert!(round_trip(8, 4, 7).iter().all(|result| *result == Err(UnitError::NoSpace)));
    }

    #[test]
    fn damaged_objects_fail() {
        let mut context = algorithm("t16:portable").context().expect("context");
        let mut back = vec![0u8; 2 * PAGE_SIZE];
        for bytes in [&[][..], &[1; 3], &[0xff; 4000], &[0x40; 9000]] {
            for pages in [1, 2] {
                let mut result = [Ok(0)];
                context.decompress(&mut DecompressRequest {
                    objects: &[Object::whole(bytes)],
                    outputs: &mut [&mut back[..pages * PAGE_SIZE]],
                    results: &mut result,
                });
                assert_eq!(result[0], Err(UnitError::Failed));
            }
        }
    }

    #[test]
    fn unknown_instruction_sets_are_refused() {
        let mut registry = Registry::new();
        register(&mut registry);
        let error = registry.find("t16:mmx").err().expect("refused").to_string();
        assert!(error.contains("mmx"), "{error}");
    }
}
