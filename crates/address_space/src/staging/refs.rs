//! Pages without heap memory: some of the arena, and a short list of references, of which the store
//! takes slices.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use sys::{arena, memory, PAGE_SIZE};

use crate::units::bytes_of;
use crate::units::EXTENT_PAGES;

type Page = [u8; PAGE_SIZE];

pub struct PageRefs<'a> {
    refs: [MaybeUninit<&'a mut Page>; EXTENT_PAGES],
    len: usize,
}

impl<'a> PageRefs<'a> {
    pub fn new() -> Self {
        PageRefs { refs: [const { MaybeUninit::uninit() }; EXTENT_PAGES], len: 0 }
    }

    pub fn push(&mut self, page: &'a mut Page) {
        self.refs[self.len].write(page);
        self.len += 1;
    }

    pub fn as_mut_slice(&mut self) -> &mut [&'a mut Page] {
        // SAFETY: the first `len` references were written by `push`.
        unsafe { std::slice::from_raw_parts_mut(self.refs.as_mut_ptr().cast(), self.len) }
    }
}

/// Pages of the arena, zeroed at first.
pub struct ArenaPages<const COUNT: usize> {
    at: usize,
}

impl<const COUNT: usize> ArenaPages<COUNT> {
    /// # Errors
    /// If the arena is full.
    pub fn new() -> io::Result<Self> {
        Ok(ArenaPages { at: arena::take(bytes_of(COUNT), PAGE_SIZE)?.as_ptr() as usize })
    }

    pub fn pages(&mut self) -> &mut [Page; COUNT] {
        // SAFETY: COUNT pages taken for this structure, zeroed at first.
        unsafe { &mut *(self.at as *mut [Page; COUNT]) }
    }
}

impl<const COUNT: usize> Drop for ArenaPages<COUNT> {
    fn drop(&mut self) {
        let at = NonNull::new(self.at as *mut u8).expect("in the arena");
        // SAFETY: whole pages of this structure. The frames are freed, not the address space.
        unsafe { memory::discard(at, bytes_of(COUNT)) };
    }
}
