//! The program's registered mappings, as last read from /proc/self/maps.
//!
//! All private anonymous mappings are registered, with any protection: the kernel merges neighbours
//! only if both or neither are registered, and mremap() of a range needs one mapping. So reserved
//! address space is registered before it becomes usable, and then merges with its neighbour.
//! Whether pages can be evicted is a separate question.

use std::ops::Range;

use address_space::{AddressSpace, Registered};
use sys::maps::{self, Mapping};
use sys::memory::USER_END;
use sys::procfs::ProcFile;

use crate::config::Config;

/// Most mappings kept. The kernel's default limit is 65530.
const MAPPINGS_MAX: usize = 65536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Managed {
    pub start: usize,
    pub end: usize,
    registered: bool,
    evictable: bool,
    /// Readable or writable when registered: only then can uses be tracked
    /// ([`address_space::AccessTracker`]).
    accessible: bool,
}

/// The registrations, in address order. The arrays have their full capacity from the start.
pub struct Registrations {
    current: Vec<Managed>,
    next: Vec<Managed>,
    buffer: Box<[u8]>,
    /// Ranges that the program guards itself.
    pub released: Vec<Range<usize>>,
    /// Bytes of mappings that could not be registered, at the last look.
    pub refused_bytes: usize,
}

impl Registrations {
    pub fn new() -> Self {
        Registrations {
            current: Vec::with_capacity(MAPPINGS_MAX),
            next: Vec::with_capacity(MAPPINGS_MAX),
            buffer: vec![0; 1 << 16].into_boxed_slice(),
            released: Vec::new(),
            refused_bytes: 0,
        }
    }

    /// Reads the process's mappings again and registers new ones.
    pub fn refresh(&mut self, file: &ProcFile, pages: &AddressSpace, config: &Config) {
        let Registrations { current, next, buffer, released, refused_bytes } = self;
        next.clear();
        *refused_bytes = 0;
        let mut old = 0;
        let mut add = |start: usize, end: usize, evictable: bool, accessible: bool| {
            while old < current.len() && current[old].end <= start {
                old += 1;
            }
            let covers = |known: &&Managed| {
                let is_enough = known.accessible || !accessible || !pages.tracker().sees_uses();
                known.registered && is_enough && known.start <= start && known.end >= end
            };
            let registered = match current.get(old).filter(covers) {
                Some(_) => Registered::Done,
                None => pages.register(start..end),
            };
            // A refused mapping may still be registered from the place where it was moved from.
            if registered != Registered::Refused {
                let registered = registered == Registered::Done;
                next.push(Managed { start, end, registered, evictable, accessible });
            }
            if registered != Registered::Done && evictable {
                *refused_bytes += end - start;
            }
            next.len() < MAPPINGS_MAX
        };
        for_each_private(file, buffer, released, config, &mut add);
        std::mem::swap(current, next);
    }

    /// Calls `each` for all mappings with evictable pages, registered or not.
    pub fn for_each_evictable(
        &mut self,
        file: &ProcFile,
        config: &Config,
        mut each: impl FnMut(Range<usize>),
    ) {
        for_each_private(file, &mut self.buffer, &self.released, config, |start, end, evictable, _| {
            if evictable {
                each(start..end);
            }
            true
        });
    }

    /// Forgets registrations of ranges whose mappings may have changed.
    pub fn note_changes(&mut self, pages: &AddressSpace) {
        pages.changed.take(|start, end| self.forget(start, end));
    }

    pub fn for_each_gap(&mut self, file: &ProcFile, mut each: impl FnMut(usize, usize)) {
        let mut end = 0;
        maps::for_each(file, &mut self.buffer, |mapping| {
            // The vsyscall page is beyond.
            let start = mapping.start.min(USER_END);
            if start > end {
                each(end, start);
            }
            end = mapping.end.min(USER_END);
        });
        if end < USER_END {
            each(end, USER_END);
        }
    }

    /// Registers one new mapping. Returns false if it overlaps known ones: then read all of them.
    pub fn register(&mut self, pages: &AddressSpace, range: Range<usize>, evictable: bool) -> bool {
        let index = self.current.partition_point(|mapping| mapping.end <= range.start);
        let is_free = self.current.get(index).is_none_or(|next| next.start >= range.end);
        if !is_free || range.end > USER_END || self.current.len() == MAPPINGS_MAX {
            return false;
        }
        if pages.register(range.clone()) == Registered::Done {
            let Range { start, end } = range;
            self.current
                .insert(index, Managed { start, end, registered: true, evictable, accessible: evictable });
        }
        true
    }

    /// Forgets that `[start, end)` is registered, because its mapping may have changed.
    fn forget(&mut self, start: usize, end: usize) {
        let first = self.current.partition_point(|mapping| mapping.end <= start);
        for mapping in self.current[first..].iter_mut().take_while(|mapping| mapping.start < end) {
            mapping.registered = false;
        }
    }

    /// Unregisters everything. The kernel handles faults until the next [`Registrations::refresh`].
    pub fn unregister_all(&mut self, pages: &AddressSpace) {
        for mapping in self.current.drain(..) {
            // Errors are expected if the mapping is gone.
            let _ = pages.reports().unregister(mapping.start, mapping.end - mapping.start);
        }
    }

    /// The first registered, evictable mapping that ends behind `address`.
    pub fn from(&self, address: usize) -> Option<Managed> {
        let index = self.current.partition_point(|mapping| mapping.end <= address);
        // Pages evicted from an unregistered mapping would read as zeroes.
        self.current[index..].iter().find(|mapping| mapping.registered && mapping.evictable).copied()
    }
}

/// Calls `each` for the private anonymous parts of mappings: start, end, whether pages can be
/// evicted now, and whether they are accessible. Ends when `each` returns false.
fn for_each_private(
    file: &ProcFile,
    buffer: &mut [u8],
    released: &[Range<usize>],
    config: &Config,
    mut each: impl FnMut(usize, usize, bool, bool) -> bool,
) {
    // Skips mappings above `USER_END`, as five-level page tables allow them.
    let (first, last) = config.only.as_ref().map_or((0, USER_END), |range| (range.start, range.end));
    maps::for_each(file, buffer, |mapping| {
        let (start, end) = (mapping.start.max(first), mapping.end.min(last));
        if !is_private_memory(&mapping) || start >= end {
            return;
        }
        let mut at = start;
        // Cut these ranges out: the kernel may have merged them with the program's neighbours.
        while at < end {
            let cut = config.own.iter().chain(released.iter());
            let next =
                cut.filter(|range| range.end > at && range.start < end).min_by_key(|range| range.start);
            let until = next.map_or(end, |range| range.start);
            let evictable = is_evictable(&mapping, config.executable);
            let accessible = mapping.read || mapping.write;
            if until > at && !each(at, until, evictable, accessible) {
                return;
            }
            at = next.map_or(end, |range| range.end);
        }
    });
}

pub(crate) fn is_private_memory(mapping: &Mapping) -> bool {
    !mapping.shared && !mapping.file && !mapping.special
}

/// The execute permission must match the staging area's for a page to be movable.
fn is_evictable(mapping: &Mapping, executable: bool) -> bool {
    mapping.read && mapping.write && mapping.execute == executable
}

#[cfg(test)]
mod tests {
    use address_space::Registration;

    use crate::testing::pager_of;

    #[test]
    fn released_ranges_are_cut_out_in_any_order() {
        let Some((pager, base)) = pager_of(8) else { return };
        let block = |number: usize| (base + number).address();
        for number in [5, 2, 6] {
            pager.release(block(number)..block(number + 1));
        }
        pager.refresh_mappings();
        let registered: Vec<usize> = (0..8)
            .filter(|number| {
                pager.process.pages.guard().registration(block(*number)) == Registration::Registered
            })
            .collect();
        assert_eq!(registered, [0, 1, 3, 4, 7]);
    }
}
