//! Sets of codebooks: lengths, and the tables that both directions use.

use std::mem::MaybeUninit;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::huffman::{self, LEN_MAX};
use crate::zeroed::zeroed;

/// Symbol contexts.
pub const CONTEXTS: usize = 6;
/// Codebooks of a context.
pub const BOOKS: usize = 16;
pub(crate) const TABLE: usize = 1 << LEN_MAX;

/// The definition of a set: the code length of every symbol, by context and codebook.
#[derive(Clone, PartialEq, Eq)]
pub struct Lengths(pub(crate) [[[u8; 256]; BOOKS]; CONTEXTS]);

impl Lengths {
    /// Bytes of the packed form.
    pub const PACKED: usize = CONTEXTS * BOOKS * 128;

    /// Packs the lengths, one nibble a symbol, low nibble first.
    pub fn pack(&self) -> Vec<u8> {
        let pairs = self.0.as_flattened().as_flattened().as_chunks::<2>().0;
        pairs.iter().map(|pair| pair[0] | pair[1] << 4).collect()
    }

    /// The reverse. Returns `None` if the bytes do not describe prefix codes.
    pub fn unpack(bytes: &[u8]) -> Option<Box<Lengths>> {
        if bytes.len() != Self::PACKED {
            return None;
        }
        let mut lengths = Box::new(Lengths([[[0; 256]; BOOKS]; CONTEXTS]));
        let pairs = lengths.0.as_flattened_mut().as_flattened_mut().as_chunks_mut::<2>().0;
        for (pair, byte) in pairs.iter_mut().zip(bytes) {
            *pair = [byte & 15, byte >> 4];
        }
        lengths.0.as_flattened().iter().all(huffman::is_valid).then_some(lengths)
    }
}

/// The length in every codebook, by context and symbol.
pub(super) type Costs = [[[u8; BOOKS]; 256]; CONTEXTS];

/// An immutable, numbered set of codebooks with its tables (about 270 KiB).
pub struct Set {
    number: u16,
    costs: Costs,
    /// Code << 4 | length.
    codes: [[[u16; 256]; BOOKS]; CONTEXTS],
    /// By the next ten bits: symbol << 8 | length.
    tables: [[[u16; TABLE]; BOOKS]; CONTEXTS],
}

impl Set {
    /// Allocates memory for a set, not yet usable.
    pub fn blank() -> Box<Set> {
        // SAFETY: all fields are integers, for which zero bytes are valid.
        unsafe { zeroed::<Set>().assume_init() }
    }

    /// Creates the set `number` with these lengths.
    pub fn new(number: u16, lengths: &Lengths) -> Box<Set> {
        let mut set = Self::blank();
        set.build(number, lengths);
        set
    }

    /// Turns this memory into the set `number`. Objects of its previous set can no longer be read.
    pub fn build(&mut self, number: u16, lengths: &Lengths) {
        self.build_from(number, |context, book| lengths.0[context][book]);
    }

    fn build_from(&mut self, number: u16, lengths: impl Fn(usize, usize) -> [u8; 256]) {
        self.number = number;
        for context in 0..CONTEXTS {
            for book in 0..BOOKS {
                let lens = &lengths(context, book);
                let codes = huffman::codes(lens);
                let table = &mut self.tables[context][book];
                // Bits that begin no code decode to something, one bit at a time.
                table.fill(1);
                for symbol in 0..256 {
                    let len = lens[symbol];
                    self.costs[context][symbol][book] = len;
                    self.codes[context][book][symbol] = codes[symbol] << 4 | u16::from(len);
                    let free = LEN_MAX - u32::from(len);
                    let first = usize::from(codes[symbol]) << free;
                    table[first..first + (1 << free)].fill((symbol as u16) << 8 | u16::from(len));
                }
            }
        }
    }

    /// Returns its memory, which the owner may give back while the set is unused: its content does
    /// not matter until [`Set::build`].
    ///
    /// # Safety
    /// The set must be built before it is used again, and only initialised bytes may be written.
    pub unsafe fn memory(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: this set's memory; all its fields are integers.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<Set>()) }
    }

    /// Returns the set's number, which its objects carry.
    pub fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn costs(&self, context: usize) -> &[[u8; BOOKS]; 256] {
        &self.costs[context]
    }

    pub(crate) fn codes(&self, context: usize, book: u8) -> &[u16; 256] {
        &self.codes[context][usize::from(book)]
    }

    pub(crate) fn table(&self, context: usize, book: u8) -> &[u16; TABLE] {
        &self.tables[context][usize::from(book)]
    }

    pub(crate) fn prefetch(&self, context: usize, book: u8) {
        let table = self.table(context, book);
        // SAFETY: 2 bytes an entry, read as bytes.
        let bytes = unsafe { std::slice::from_raw_parts(table.as_ptr().cast::<u8>(), 2 * TABLE) };
        crate::t16::prefetch(bytes);
    }
}

/// A set that comes with this library, as its packed lengths. Its tables are built at first use.
pub(super) struct Builtin {
    packed: &'static [u8; Lengths::PACKED],
    reserved: Mutex<Option<Box<Set>>>,
    set: OnceLock<Box<Set>>,
}

pub(super) static T16: Builtin = Builtin::new(include_bytes!("builtin.lengths"));
pub(super) static PAGE: Builtin = Builtin::new(include_bytes!("builtin-page.lengths"));

impl Builtin {
    const fn new(packed: &'static [u8; Lengths::PACKED]) -> Self {
        Builtin { packed, reserved: Mutex::new(None), set: OnceLock::new() }
    }

    fn reserve(&self) {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if reserved.is_none() && self.set.get().is_none() {
            *reserved = Some(Set::blank());
        }
    }

    fn get(&self) -> &Set {
        self.set.get_or_init(|| {
            let reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut set = reserved.unwrap_or_else(Set::blank);
            set.build_from(0, |context, book| self.lens(context, book));
            set
        })
    }

    pub(super) fn lens(&self, context: usize, book: usize) -> [u8; 256] {
        let bytes = &self.packed[(context * BOOKS + book) * 128..][..128];
        std::array::from_fn(|symbol| bytes[symbol / 2] >> (symbol % 2 * 4) & 15)
    }
}

/// Returns set 0 for T16 objects, trained on the heaps of several programs
/// (`examples/t16h_train.rs`): the fallback without a better set.
pub fn builtin() -> &'static Set {
    T16.get()
}

/// Returns set 0 for pages as page LZ.
pub fn builtin_page() -> &'static Set {
    PAGE.get()
}

/// Allocates the memory of both built-in sets, so that building them at first use allocates
/// nothing. The memory stays untouched before that.
pub fn reserve_builtin() {
    T16.reserve();
    PAGE.reserve();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_sets_match_their_packed_lengths() {
        reserve_builtin();
        for (builtin, set) in [(&T16, builtin()), (&PAGE, builtin_page())] {
            let lengths = Lengths::unpack(builtin.packed).expect("valid prefix codes");
            let unpacked = Set::new(0, &lengths);
            assert!(
                set.costs == unpacked.costs && set.codes == unpacked.codes && set.tables == unpacked.tables
            );
        }
    }
}
