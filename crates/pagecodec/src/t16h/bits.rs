//! Eight interleaved bit streams, most significant bit first. Symbol `j` of a context goes to
//! stream `j mod 8`.
//!
//! Two streams share a stretch of bytes: the even one grows from its front, the odd one from its
//! back. So eight streams, which keep a reader busy during table lookups, cost hardly more bytes
//! than four.

use crate::zeroed::zeroed;
use crate::Isa;

use super::books::{CONTEXTS, TABLE};
use super::huffman::LEN_MAX;
use super::symbols::SYMBOLS_MAX;

pub(super) const STREAMS: usize = 8;
pub(super) const STRETCHES: usize = STREAMS / 2;
/// Symbols put at a time: four of each stream.
pub(super) const ROUND: usize = 4 * STREAMS;
/// Longest stream: 1/8 of six contexts' symbols at 10 bits, and room for whole-word stores.
pub(super) const STREAM_MAX: usize = 6 * (SYMBOLS_MAX / STREAMS + 1) * LEN_MAX as usize / 8 + 16;
/// Largest total length of the streams that are read.
const INPUT_MAX: usize = 8192;
const ROUNDS_MAX: usize = CONTEXTS * SYMBOLS_MAX.div_ceil(STREAMS);
/// Bytes that may be read before and behind the streams: in damaged objects, the longest stream.
const BEFORE: usize = 8 + ROUNDS_MAX * LEN_MAX as usize / 8 + 8;
const BEHIND: usize = BEFORE;
/// The streams to read, with the bytes that may be read around them.
type Input = [u8; BEFORE + INPUT_MAX + BEHIND];

pub(crate) struct BitStreams {
    /// The odd ones end with the array.
    pub(super) bytes: [[u8; STREAM_MAX]; STREAMS],
    pub(super) ends: [usize; STREAMS],
    /// Bits not yet final in `bytes`, left-aligned; fewer than 8 between calls.
    pub(super) pending: [u64; STREAMS],
    pub(super) pending_len: [u32; STREAMS],
    input: Input,
    input_end: usize,
}

/// Returns the place of the eight bytes behind the first `end` in a stream's array.
#[inline(always)]
pub(super) const fn place(stream: usize, end: usize) -> usize {
    if stream.is_multiple_of(2) {
        end
    } else {
        STREAM_MAX - 8 - end
    }
}

/// Eight bytes in the order of a stream.
#[inline(always)]
pub(super) const fn in_order(stream: usize, bits: u64) -> u64 {
    if stream.is_multiple_of(2) {
        bits.to_be()
    } else {
        bits.to_le()
    }
}

impl BitStreams {
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: all fields are integers, for which zero bytes are valid.
        let mut streams = unsafe { zeroed::<BitStreams>().assume_init() };
        streams.input_end = BEFORE;
        streams
    }

    pub(crate) fn clear(&mut self) {
        self.ends = [0; STREAMS];
        self.pending = [0; STREAMS];
        self.pending_len = [0; STREAMS];
    }

    pub(crate) fn put(&mut self, isa: Isa, symbols: &[u8], codes: &[u16; 256]) {
        assert!(isa.is_available(), "this machine lacks {isa}");
        assert!(symbols.len() <= SYMBOLS_MAX, "{} symbols", symbols.len());
        match isa {
            // SAFETY: the machine has the instructions (asserted above).
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { self.put_avx512(symbols, codes) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { self.put_avx2(symbols, codes) },
            _ => self.put_generic(symbols, codes),
        }
    }

    #[inline(always)]
    fn put_generic(&mut self, symbols: &[u8], codes: &[u16; 256]) {
        let (rounds, rest) = symbols.as_chunks::<ROUND>();
        for round in rounds {
            for stream in 0..STREAMS {
                let (mut bits, mut len) = (0, 0);
                for at in 0..4 {
                    let code = codes[usize::from(round[STREAMS * at + stream])];
                    let code_len = u32::from(code & 15);
                    bits = bits << code_len | u64::from(code >> 4);
                    len += code_len;
                }
                self.append(stream, bits, len);
            }
        }
        self.put_rest(rest, codes);
    }

    /// [`BitStreams::put`] of less than a round.
    #[inline(always)]
    pub(super) fn put_rest(&mut self, rest: &[u8], codes: &[u16; 256]) {
        for (at, &symbol) in rest.iter().enumerate() {
            let code = codes[usize::from(symbol)];
            self.append(at % STREAMS, u64::from(code >> 4), u32::from(code & 15));
        }
    }

    #[inline(always)]
    fn append(&mut self, stream: usize, bits: u64, len: u32) {
        // At most 7 + 40 bits.
        let len = self.pending_len[stream] + len;
        let bits = self.pending[stream] | bits << (64 - len);
        let to = place(stream, self.ends[stream]);
        self.bytes[stream][to..to + 8].copy_from_slice(&in_order(stream, bits).to_ne_bytes());
        self.ends[stream] += len as usize / 8;
        self.pending[stream] = bits << (len & 0x38);
        self.pending_len[stream] = len % 8;
    }

    /// Returns the stretches' lengths in bytes. Zero bits pad the last byte of each stream.
    pub(crate) fn finish(&mut self) -> [usize; STRETCHES] {
        for (end, len) in self.ends.iter_mut().zip(&mut self.pending_len) {
            *end += usize::from(*len > 0);
            *len = 0;
        }
        std::array::from_fn(|stretch| self.ends[2 * stretch] + self.ends[2 * stretch + 1])
    }

    /// Writes the stretches one after the other; `out` has exactly their length.
    pub(crate) fn copy(&self, mut out: &mut [u8]) {
        for (pair, ends) in self.bytes.as_chunks::<2>().0.iter().zip(self.ends.as_chunks::<2>().0) {
            let (front, back);
            (front, out) = out.split_at_mut(ends[0]);
            (back, out) = out.split_at_mut(ends[1]);
            front.copy_from_slice(&pair[0][..ends[0]]);
            back.copy_from_slice(&pair[1][STREAM_MAX - ends[1]..]);
        }
    }

    /// Prepares to read `bytes`, given all lengths but the last. Returns `None` if they do not fit.
    pub(crate) fn read(&mut self, bytes: &[u8], lens: [usize; STRETCHES - 1]) -> Option<Reader<'_>> {
        let known: usize = lens.iter().sum();
        if known > bytes.len() || bytes.len() > INPUT_MAX {
            return None;
        }
        let behind = BEFORE + bytes.len();
        self.input[BEFORE..behind].copy_from_slice(bytes);
        // Restores the zeros that a longer input has overwritten.
        if self.input_end > behind {
            self.input[behind..self.input_end].fill(0);
        }
        self.input_end = behind;
        let mut places = [0; STREAMS];
        let mut start = BEFORE;
        for (stretch, pair) in places.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let end = lens.get(stretch).map_or(behind, |len| start + len);
            *pair = [8 * start, 8 * (end - 8) + 7];
            start = end;
        }
        Some(Reader { input: &self.input, left: ROUNDS_MAX, places })
    }
}

/// Reads symbols from the streams. Reading beyond the end of a stream yields meaningless symbols.
pub(crate) struct Reader<'a> {
    input: &'a Input,
    left: usize,
    /// In bits: eight times the place of the eight bytes that begin (odd streams: end) with the
    /// next bit's byte, plus the number of bits before (odd streams: behind) that bit in its byte.
    places: [usize; STREAMS],
}

impl Reader<'_> {
    pub(crate) fn take(&mut self, isa: Isa, symbols: &mut [u8], table: &[u16; TABLE]) {
        let rounds = symbols.len().div_ceil(STREAMS);
        self.left = self.left.checked_sub(rounds).expect("no more contexts than there are");
        let reader = self;
        with_isa!(
            isa,
            fn run(reader: &mut Reader<'_>, symbols: &mut [u8], table: &[u16; TABLE]) -> () {
                reader.take_generic(symbols, table)
            }
        )
    }

    #[inline(always)]
    fn take_generic(&mut self, symbols: &mut [u8], table: &[u16; TABLE]) {
        // Eight variables instead of an array stay in registers.
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h];
        let input = self.input;
        let mut places = self.places;
        macro_rules! refill {
            () => {
                (a, b, c, d) = (
                    next(input, 0, places[0]),
                    next(input, 1, places[1]),
                    next(input, 2, places[2]),
                    next(input, 3, places[3]),
                );
                (e, f, g, h) = (
                    next(input, 4, places[4]),
                    next(input, 5, places[5]),
                    next(input, 6, places[6]),
                    next(input, 7, places[7]),
                );
            };
        }
        macro_rules! advance {
            () => {
                for (stream, bits) in [a, b, c, d, e, f, g, h].into_iter().enumerate() {
                    advance(stream, &mut places[stream], bits);
                }
            };
        }
        macro_rules! row {
            ($row:expr) => {
                let row: &mut [u8; STREAMS] = $row;
                symbol(&mut a, table, &mut row[0]);
                symbol(&mut b, table, &mut row[1]);
                symbol(&mut c, table, &mut row[2]);
                symbol(&mut d, table, &mut row[3]);
                symbol(&mut e, table, &mut row[4]);
                symbol(&mut f, table, &mut row[5]);
                symbol(&mut g, table, &mut row[6]);
                symbol(&mut h, table, &mut row[7]);
            };
        }
        let (rounds, rest) = symbols.as_chunks_mut::<{ 5 * STREAMS }>();
        for round in rounds {
            refill!();
            // Five symbols a stream take at most 50 of 56 bits.
            let (rows, _) = round.as_chunks_mut::<STREAMS>();
            row!(&mut rows[0]);
            row!(&mut rows[1]);
            row!(&mut rows[2]);
            row!(&mut rows[3]);
            row!(&mut rows[4]);
            advance!();
        }
        if !rest.is_empty() {
            refill!();
            let (rows, rest) = rest.as_chunks_mut::<STREAMS>();
            for row in rows {
                row!(row);
            }
            // The last row may be shorter: streams beyond it do not advance.
            let mut row = [0; STREAMS];
            let before = [a, b, c, d, e, f, g, h];
            row!(&mut row);
            for (stream, bits) in [a, b, c, d, e, f, g, h].into_iter().enumerate() {
                advance(stream, &mut places[stream], if stream < rest.len() { bits } else { before[stream] });
            }
            rest.copy_from_slice(&row[..rest.len()]);
        }
        self.places = places;
    }
}

/// Returns the next bits of a stream, left-aligned, with a marker bit that records the shifts.
#[inline(always)]
fn next(input: &Input, stream: usize, place: usize) -> u64 {
    // SAFETY: a stream begins (odd ones: ends) within the given bytes or eight before them, and
    // [`Reader::take`] ensures that at most [`ROUNDS_MAX`] symbols of 10 bits are read from there
    // on, for which there is room on both sides.
    let next = unsafe { input.as_ptr().add(place / 8).cast::<u64>().read_unaligned() };
    let used = if stream.is_multiple_of(2) { place } else { !place } % 8;
    // `in_order` is its own reverse.
    (in_order(stream, next) | 1) << used
}

/// Advances a place by the shifts that the marker bit records.
#[inline(always)]
fn advance(stream: usize, place: &mut usize, bits: u64) {
    // Counted from the byte's first bit.
    let shifted = bits.trailing_zeros() as usize;
    *place = if stream.is_multiple_of(2) { (*place & !7) + shifted } else { (*place | 7) - shifted };
}

#[inline(always)]
fn symbol(bits: &mut u64, table: &[u16; TABLE], slot: &mut u8) {
    let entry = table[(*bits >> (64 - LEN_MAX)) as usize];
    *bits <<= entry & 63;
    // Volatile, because the compiler would otherwise join symbols in a vector before storing them,
    // which costs more.
    // SAFETY: the byte is borrowed.
    unsafe { std::ptr::write_volatile(slot, (entry >> 8) as u8) };
}
