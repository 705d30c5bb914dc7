//! References to up to a leaf's pages, side by side, without an allocation.

use std::mem::MaybeUninit;

use uzswap::Page;

use crate::split::{BLOCK_BYTES, LEAF_BLOCKS};

pub(crate) struct Pages<'a> {
    /// The first `len` are initialised.
    refs: [MaybeUninit<&'a mut Page>; LEAF_BLOCKS],
    len: usize,
}

impl<'a> Pages<'a> {
    pub(crate) fn new() -> Self {
        Pages { refs: [const { MaybeUninit::uninit() }; LEAF_BLOCKS], len: 0 }
    }

    pub(crate) fn of(page: &'a mut Page) -> Self {
        let mut pages = Pages::new();
        pages.push(page);
        pages
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, page: &'a mut Page) {
        self.refs[self.len].write(page);
        self.len += 1;
    }

    pub(crate) fn extend(&mut self, bytes: &'a mut [u8]) {
        let (pages, rest) = bytes.as_chunks_mut::<BLOCK_BYTES>();
        debug_assert!(rest.is_empty());
        pages.iter_mut().for_each(|page| self.push(page));
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [&'a mut Page] {
        // SAFETY: `push` wrote the first `len`, and only `into_pages`, which consumes this, takes
        // them out.
        unsafe { std::slice::from_raw_parts_mut(self.refs.as_mut_ptr().cast(), self.len) }
    }

    pub(crate) fn into_pages(self) -> impl Iterator<Item = &'a mut Page> {
        // SAFETY: `push` has written the first `len`.
        self.refs.into_iter().take(self.len).map(|page| unsafe { page.assume_init() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_in_order() {
        let (mut first, mut rest) = ([0; BLOCK_BYTES], [0; 15 * BLOCK_BYTES]);
        let mut pages = Pages::of(&mut first);
        pages.extend(&mut rest);
        assert_eq!(pages.len(), 16);
        for (number, page) in (0u8..).zip(pages.as_mut_slice()) {
            page[4095] = number;
        }
        for (number, page) in (0u8..).zip(pages.into_pages()) {
            page[0] = number;
        }
        assert_eq!((first[0], first[4095]), (0, 0));
        for (number, page) in (1u8..).zip(rest.chunks(BLOCK_BYTES)) {
            assert_eq!((page[0], page[4095]), (number, number));
        }
    }
}
