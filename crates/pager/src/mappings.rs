//! The program's mappings that can be paged, as last seen in /proc/self/maps.

use sys::maps::{self, Mapping};
use sys::procfs::ProcFile;
use sys::userfaultfd::{Userfaultfd, MISSING};

/// Most mappings kept; the kernel's default limit is 65530.
const MAPPINGS_MAX: usize = 65536;

/// A mapping under management.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Managed {
    /// First byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
    /// When it was first seen, in nanoseconds of the monotonic clock.
    pub seen_ns: u64,
    registered: bool,
}

/// The list, in address order. Its arrays have their full capacity from the start.
pub struct Mappings {
    current: Vec<Managed>,
    next: Vec<Managed>,
    buffer: Box<[u8]>,
    /// Bytes of mappings that could not be registered, at the last look.
    pub refused_bytes: usize,
}

impl Mappings {
    /// An empty list.
    pub fn new() -> Self {
        Mappings {
            current: Vec::with_capacity(MAPPINGS_MAX),
            next: Vec::with_capacity(MAPPINGS_MAX),
            buffer: vec![0; 1 << 16].into_boxed_slice(),
            refused_bytes: 0,
        }
    }

    /// Looks at the process's mappings again and registers new ones. `own` are ranges never to be touched.
    pub fn refresh(
        &mut self,
        file: &ProcFile,
        uffd: &Userfaultfd,
        own: &[std::ops::Range<usize>],
        now_ns: u64,
    ) {
        let Mappings { current, next, buffer, refused_bytes } = self;
        next.clear();
        *refused_bytes = 0;
        let mut old = 0;
        maps::for_each(file, buffer, |mapping| {
            if !is_pageable(&mapping) || next.len() == MAPPINGS_MAX {
                return;
            }
            let mut at = mapping.start;
            // Own ranges are cut out; the kernel may have merged them with a neighbour of the program's.
            for range in own.iter().filter(|range| range.start < mapping.end && mapping.start < range.end) {
                if range.start > at {
                    add(current, &mut old, next, uffd, at, range.start, now_ns, refused_bytes);
                }
                at = range.end;
            }
            if at < mapping.end {
                add(current, &mut old, next, uffd, at, mapping.end, now_ns, refused_bytes);
            }
        });
        std::mem::swap(current, next);
    }

    /// Forgets that `[start, end)` is registered: its mapping may be another one now.
    pub fn forget(&mut self, start: usize, end: usize) {
        for mapping in &mut self.current {
            if mapping.start < end && start < mapping.end {
                mapping.registered = false;
            }
        }
    }

    /// Unregisters everything; faults go to the kernel until the next [`Mappings::refresh`].
    pub fn unregister_all(&mut self, uffd: &Userfaultfd) {
        for mapping in self.current.drain(..).filter(|mapping| mapping.registered) {
            // A mapping that has gone meanwhile has nothing registered.
            let _ = uffd.unregister(mapping.start, mapping.end - mapping.start);
        }
    }

    /// The first registered mapping that ends behind `address`.
    pub fn from(&self, address: usize) -> Option<Managed> {
        let index = self.current.partition_point(|mapping| mapping.end <= address);
        // What is evicted from a mapping that is not registered would be found as zeroes.
        self.current[index..].iter().find(|mapping| mapping.registered).copied()
    }
}

fn is_pageable(mapping: &Mapping) -> bool {
    // Execute permission would have to match the staging area's for a page to be movable; code is rarely cold anyway.
    mapping.read && mapping.write && !mapping.execute && !mapping.shared && !mapping.file && !mapping.special
}

#[allow(clippy::too_many_arguments)] // one step of the loop above, kept apart only because it is used twice
fn add(
    current: &[Managed],
    old: &mut usize,
    next: &mut Vec<Managed>,
    uffd: &Userfaultfd,
    start: usize,
    end: usize,
    now_ns: u64,
    refused_bytes: &mut usize,
) {
    while *old < current.len() && current[*old].end <= start {
        *old += 1;
    }
    let known = current.get(*old).filter(|known| known.start < end);
    if let Some(known) = known.filter(|known| known.registered && known.start <= start && known.end >= end) {
        next.push(Managed { start, end, ..*known });
        return;
    }
    match uffd.register(start, end - start, MISSING) {
        // A mapping that grew keeps its age: what is new in it faults through us anyway.
        Ok(()) => {
            let seen_ns = known.filter(|known| known.registered).map_or(now_ns, |known| known.seen_ns);
            next.push(Managed { start, end, seen_ns, registered: true });
        }
        Err(_) => *refused_bytes += end - start,
    }
}
