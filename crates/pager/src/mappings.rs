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
    pub fn refresh(&mut self, file: &ProcFile, uffd: &Userfaultfd, own: &[std::ops::Range<usize>]) {
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
                    add(current, &mut old, next, uffd, at..range.start, refused_bytes);
                }
                at = range.end;
            }
            if at < mapping.end {
                add(current, &mut old, next, uffd, at..mapping.end, refused_bytes);
            }
        });
        std::mem::swap(current, next);
    }

    /// Calls `each` for every range between mappings of any kind.
    pub fn for_each_gap(&mut self, file: &ProcFile, mut each: impl FnMut(usize, usize)) {
        use sys::memory::USER_END;
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

    /// Registers one new mapping. False when it overlaps others that are known: look at all of them then.
    pub fn register(&mut self, uffd: &Userfaultfd, range: std::ops::Range<usize>) -> bool {
        let index = self.current.partition_point(|mapping| mapping.end <= range.start);
        let is_free = self.current.get(index).is_none_or(|next| next.start >= range.end);
        if !is_free || self.current.len() == MAPPINGS_MAX {
            return false;
        }
        if uffd.register(range.start, range.len(), MISSING).is_ok() {
            self.current.insert(index, Managed { start: range.start, end: range.end, registered: true });
        }
        true
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

/// Adds a range to the list, registered.
fn add(
    current: &[Managed],
    old: &mut usize,
    next: &mut Vec<Managed>,
    uffd: &Userfaultfd,
    range: std::ops::Range<usize>,
    refused_bytes: &mut usize,
) {
    let (start, end) = (range.start, range.end);
    while *old < current.len() && current[*old].end <= start {
        *old += 1;
    }
    let covers = |known: &&Managed| known.registered && known.start <= start && known.end >= end;
    let is_registered = current.get(*old).filter(covers).is_some();
    if is_registered || uffd.register(start, end - start, MISSING).is_ok() {
        next.push(Managed { start, end, registered: true });
    } else {
        *refused_bytes += end - start;
    }
}
