//! A worker's context: from requests to jobs and back.

use std::sync::Arc;

use acomp::{CompressRequest, Context, DecompressRequest, Page, UnitError, UnitResult, MAX_BATCH, PAGE_SIZE};

use crate::current::Anchor;
use crate::driver::Driver;
use crate::memory::Memory;
use crate::settings::SyncMode;
use crate::statistics::count;
use crate::work::{Buffers, Mode, Outcome, Work};

/// See [`acomp::Context`].
pub(crate) struct IaaContext {
    driver: Arc<Driver>,
    anchor: Arc<Anchor>,
    memory: Memory,
    unit_size: usize,
    mode: Mode,
}

impl IaaContext {
    pub fn new(driver: Arc<Driver>, unit_size: usize, is_dynamic: bool) -> Self {
        IaaContext {
            anchor: driver.anchor(),
            memory: Memory::new(unit_size, is_dynamic),
            unit_size,
            mode: if is_dynamic { Mode::Dynamic } else { Mode::Fixed },
            driver,
        }
    }

    /// Runs the jobs of a request, those of `order` first to last, and returns how each unit ended.
    ///
    /// # Safety
    /// The buffers of the units in `order` are valid: sources for reads, destinations for writes by
    /// devices alone, until this returns.
    #[inline]
    unsafe fn run(
        &mut self,
        mode: Mode,
        buffers: &[Buffers; MAX_BATCH],
        order: &[u8],
    ) -> [Outcome; MAX_BATCH] {
        let mut outcomes = [Outcome::Open; MAX_BATCH];
        let is_compress = mode != Mode::Decompress;
        let at_a_time = match self.driver.settings.sync_mode {
            SyncMode::Async => order.len(),
            SyncMode::Sync => 1,
        };
        if order.is_empty() {
            return outcomes;
        }
        let table = self.driver.current.pin(&self.anchor);
        let cpu = sys::cpu::current();
        for group in order.chunks(at_a_time) {
            let queues = table.choose(cpu, is_compress, group.len() as u32);
            let mut work = Work::new(&self.driver, &mut self.memory, mode, queues, group.len());
            for (turn, &unit) in group.iter().enumerate() {
                work.submit(usize::from(unit), turn, buffers[usize::from(unit)]);
            }
            work.finish();
            for &unit in group {
                outcomes[usize::from(unit)] = work.outcome(usize::from(unit));
            }
        }
        outcomes
    }

    #[cold]
    fn compress_in_software(&self, source: &[u8], output: &mut [u8]) -> UnitResult {
        if !self.driver.settings.software_compress {
            return Err(UnitError::Failed);
        }
        count(&self.driver.counters.sw_comp_calls);
        let size = self.driver.software().compress(source, output, self.mode == Mode::Dynamic);
        size.ok_or(UnitError::NoSpace)
    }

    #[cold]
    fn decompress_in_software(&self, source: &[u8], output: &mut [u8]) -> UnitResult {
        count(&self.driver.counters.sw_decomp_calls);
        let record = self.driver.software().inflate(source, output);
        if record.is_success() && record.output_size as usize == output.len() {
            Ok(output.len())
        } else {
            Err(UnitError::Failed)
        }
    }
}

const NO_BUFFERS: Buffers = Buffers {
    source: std::ptr::null(),
    source_len: 0,
    destination: std::ptr::null_mut(),
    destination_len: 0,
};

/// The address of a unit's pages in one piece: in place, or copied into the unit's bounce buffer.
fn in_one_piece(memory: &mut Memory, unit: usize, pages: &[&Page]) -> *const u8 {
    let is_contiguous =
        pages.windows(2).all(|pair| std::ptr::eq(pair[0].as_ptr_range().end, pair[1].as_ptr()));
    if is_contiguous {
        return pages[0].as_ptr();
    }
    let bounce = memory.bounce(unit);
    for (slot, page) in bounce.chunks_exact_mut(PAGE_SIZE).zip(pages) {
        slot.copy_from_slice(*page);
    }
    bounce.as_ptr()
}

impl Context for IaaContext {
    fn compress(&mut self, request: &mut CompressRequest<'_, '_>) {
        request.assert_valid();
        let pages_per_unit = request.unit_size / PAGE_SIZE;
        assert!(request.unit_size <= self.unit_size, "a context for smaller units");
        let units = request.units();
        let mut buffers = [NO_BUFFERS; MAX_BATCH];
        let mut order = [0; MAX_BATCH];
        let mut ordered = 0;
        for (unit, pages) in request.pages.chunks(pages_per_unit).enumerate() {
            let output = &mut *request.outputs[unit];
            if output.is_empty() {
                continue;
            }
            let source = match pages {
                [page] => page.as_ptr(),
                pages => in_one_piece(&mut self.memory, unit, pages),
            };
            buffers[unit] = Buffers {
                source,
                source_len: (pages.len() * PAGE_SIZE) as u32,
                destination: output.as_mut_ptr(),
                destination_len: output.len() as u32,
            };
            order[ordered] = unit as u8;
            ordered += 1;
        }
        // SAFETY: sources are borrowed by the request, or bounce buffers; outputs are borrowed
        // exclusively.
        let outcomes = unsafe { self.run(self.mode, &buffers, &order[..ordered]) };
        for unit in 0..units {
            request.results[unit] = match outcomes[unit] {
                Outcome::Done(size) => Ok(size as usize),
                Outcome::NoSpace => Err(UnitError::NoSpace),
                Outcome::Shortage => Err(UnitError::Failed),
                Outcome::Software => {
                    let Buffers { source, source_len, .. } = buffers[unit];
                    // SAFETY: as above; no device uses the buffers any more.
                    let source = unsafe { std::slice::from_raw_parts(source, source_len as usize) };
                    self.compress_in_software(source, request.outputs[unit])
                }
                Outcome::Open => Err(UnitError::NoSpace),
            };
        }
    }

    fn decompress(&mut self, request: &mut DecompressRequest<'_, '_>) {
        request.assert_valid();
        let mut buffers = [NO_BUFFERS; MAX_BATCH];
        let mut order = [0; MAX_BATCH];
        let mut ordered = 0;
        for (unit, object) in request.objects.iter().enumerate() {
            let output = &mut *request.outputs[unit];
            let fits = object.tail.is_empty() || object.len() <= self.unit_size;
            // An object is never longer than its unit.
            if object.is_empty() || output.is_empty() || !fits || object.len() > u32::MAX as usize {
                continue;
            }
            let source = match object.tail {
                [] => object.head.as_ptr(),
                _ => object.linear(self.memory.bounce(unit)).as_ptr(),
            };
            buffers[unit] = Buffers {
                source,
                source_len: object.len() as u32,
                destination: output.as_mut_ptr(),
                destination_len: output.len() as u32,
            };
            order[ordered] = unit as u8;
            ordered += 1;
        }
        if self.driver.settings.sync_mode == SyncMode::Async {
            largest_first(&mut order[..ordered], |unit| buffers[usize::from(unit)].source_len);
        }
        // SAFETY: sources are borrowed by the request, or bounce buffers; outputs are borrowed
        // exclusively.
        let outcomes = unsafe { self.run(Mode::Decompress, &buffers, &order[..ordered]) };
        for (unit, result) in request.results.iter_mut().enumerate() {
            *result = match outcomes[unit] {
                Outcome::Done(size) => Ok(size as usize),
                Outcome::Software | Outcome::Shortage => {
                    let Buffers { source, source_len, .. } = buffers[unit];
                    // SAFETY: as above; no device uses the buffers any more.
                    let source = unsafe { std::slice::from_raw_parts(source, source_len as usize) };
                    self.decompress_in_software(source, request.outputs[unit])
                }
                Outcome::NoSpace | Outcome::Open => Err(UnitError::Failed),
            };
        }
    }
}

/// Moves the two largest to the front: the batch takes as long as its longest job, so those get a
/// head start. Of equal ones the later counts as larger. The rest keeps its order.
fn largest_first(order: &mut [u8], len: impl Fn(u8) -> u32) {
    for front in 0..2.min(order.len()) {
        let (mut at, mut most) = (front, 0);
        for (index, &unit) in order.iter().enumerate().skip(front) {
            if len(unit) >= most {
                (at, most) = (index, len(unit));
            }
        }
        order[front..=at].rotate_right(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_largest_go_first_and_the_rest_in_order() {
        let sorted = |lens: &[u32]| {
            let mut order: Vec<u8> = (0..lens.len() as u8).collect();
            largest_first(&mut order, |unit| lens[usize::from(unit)]);
            order
        };
        assert_eq!(sorted(&[5, 9, 3, 7, 9, 1, 2, 4]), [4, 1, 0, 2, 3, 5, 6, 7]);
        assert_eq!(sorted(&[1, 1, 1]), [2, 1, 0]);
        assert_eq!(sorted(&[2, 1]), [0, 1]);
        assert_eq!(sorted(&[7]), [0]);
    }
}
