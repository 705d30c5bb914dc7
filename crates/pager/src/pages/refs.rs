//! A short list of page references without heap memory: the store takes slices of references.

use std::mem::MaybeUninit;

use sys::PAGE_SIZE;

use super::extents::EXTENT_PAGES;

type Page = [u8; PAGE_SIZE];

pub(crate) struct PageRefs<'a> {
    refs: [MaybeUninit<&'a mut Page>; EXTENT_PAGES],
    len: usize,
}

impl<'a> PageRefs<'a> {
    pub(crate) fn new() -> Self {
        PageRefs { refs: [const { MaybeUninit::uninit() }; EXTENT_PAGES], len: 0 }
    }

    pub(crate) fn push(&mut self, page: &'a mut Page) {
        self.refs[self.len].write(page);
        self.len += 1;
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [&'a mut Page] {
        // SAFETY: the first `len` references were written by `push`.
        unsafe { std::slice::from_raw_parts_mut(self.refs.as_mut_ptr().cast(), self.len) }
    }
}
