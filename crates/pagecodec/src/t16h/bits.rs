//! Four interleaved bit streams, most significant bit first. Symbol `j` of a context goes to stream `j mod 4`.

use crate::Isa;

use super::books::TABLE;
use super::huffman::LEN_MAX;
use super::symbols::SYMBOLS_MAX;

pub(super) const STREAMS: usize = 4;
/// Longest stream: a quarter of the symbols of six contexts at 10 bits, and room for whole-word stores.
const STREAM_MAX: usize = 6 * (SYMBOLS_MAX / STREAMS + 1) * LEN_MAX as usize / 8 + 16;
/// Bytes that may be read behind the streams.
const PADDING: usize = 16;

pub(crate) struct Streams {
    pub(super) bytes: [[u8; STREAM_MAX]; STREAMS],
    pub(super) ends: [usize; STREAMS],
    /// Bits not yet in `bytes` for good, left-aligned; fewer than 8 between calls.
    pub(super) pending: [u64; STREAMS],
    pub(super) pending_len: [u32; STREAMS],
    /// A copy of the streams to read, with readable bytes behind.
    input: [u8; 8192 + PADDING],
}

impl Streams {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Streams {
            bytes: [[0; STREAM_MAX]; STREAMS],
            ends: [0; STREAMS],
            pending: [0; STREAMS],
            pending_len: [0; STREAMS],
            input: [0; 8192 + PADDING],
        })
    }

    pub(crate) fn clear(&mut self) {
        self.ends = [0; STREAMS];
        self.pending = [0; STREAMS];
        self.pending_len = [0; STREAMS];
    }

    /// Appends one context's symbols.
    pub(crate) fn put(&mut self, isa: Isa, symbols: &[u8], codes: &[u16; 256]) {
        assert!(isa.is_available(), "this machine lacks {isa}");
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

    /// [`Streams::put`] with the instructions of Haswell.
    ///
    /// # Safety
    /// The machine must have them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn put_avx2(&mut self, symbols: &[u8], codes: &[u16; 256]) {
        self.put_generic(symbols, codes)
    }

    #[inline(always)]
    fn put_generic(&mut self, symbols: &[u8], codes: &[u16; 256]) {
        let (rounds, rest) = symbols.as_chunks::<16>();
        for round in rounds {
            for stream in 0..STREAMS {
                let (mut bits, mut len) = (0, 0);
                for at in 0..4 {
                    let code = codes[usize::from(round[4 * at + stream])];
                    let code_len = u32::from(code & 15);
                    bits = bits << code_len | u64::from(code >> 4);
                    len += code_len;
                }
                self.append(stream, bits, len);
            }
        }
        for (at, &symbol) in rest.iter().enumerate() {
            let code = codes[usize::from(symbol)];
            self.append(at % STREAMS, u64::from(code >> 4), u32::from(code & 15));
        }
    }

    /// Appends up to 40 bits to a stream.
    #[inline(always)]
    fn append(&mut self, stream: usize, bits: u64, len: u32) {
        // At most 7 + 40 bits.
        let len = self.pending_len[stream] + len;
        let bits = self.pending[stream] | bits << (64 - len);
        let to = &mut self.bytes[stream][self.ends[stream]..self.ends[stream] + 8];
        to.copy_from_slice(&bits.to_be_bytes());
        self.ends[stream] += len as usize / 8;
        self.pending[stream] = bits << (len & 0x38);
        self.pending_len[stream] = len % 8;
    }

    /// The streams' lengths in bytes, the last one padded with zero bits.
    pub(crate) fn finish(&mut self) -> [usize; STREAMS] {
        std::array::from_fn(|stream| self.ends[stream] + usize::from(self.pending_len[stream] > 0))
    }

    /// Writes the streams one after the other; `out` has exactly their length.
    pub(crate) fn copy(&self, lens: [usize; STREAMS], mut out: &mut [u8]) {
        for (bytes, len) in self.bytes.iter().zip(lens) {
            let place;
            (place, out) = out.split_at_mut(len);
            place.copy_from_slice(&bytes[..len]);
        }
    }

    /// Prepares to read the streams in `bytes`, of which three lengths are given; `None` when they do not fit.
    pub(crate) fn read(&mut self, bytes: &[u8], lens: [usize; STREAMS - 1]) -> Option<Reader<'_>> {
        let known: usize = lens.iter().sum();
        if known > bytes.len() || bytes.len() > self.input.len() - PADDING {
            return None;
        }
        self.input[..bytes.len()].copy_from_slice(bytes);
        self.input[bytes.len()..bytes.len() + PADDING].fill(0);
        let starts = [0, lens[0], lens[0] + lens[1], known];
        Some(Reader { input: &self.input, end: bytes.len() + 8, at: starts, used: [0; STREAMS] })
    }
}

/// Reads symbols from four streams. Reads past the end of the input yield zero bits.
pub(crate) struct Reader<'a> {
    input: &'a [u8; 8192 + PADDING],
    /// The last place from which eight bytes may be read.
    end: usize,
    /// The byte that has each stream's next bit, and how many bits of it are used up.
    at: [usize; STREAMS],
    used: [u32; STREAMS],
}

impl Reader<'_> {
    /// Fills `symbols` with the next context's.
    pub(crate) fn take(&mut self, isa: Isa, symbols: &mut [u8], table: &[u16; TABLE]) {
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
        let (mut at, mut used) = (self.at, self.used);
        // The next bits, left-aligned, and a one that tells how far they were shifted.
        let mut bits = [0; STREAMS];
        macro_rules! refill {
            ($stream:expr) => {
                // SAFETY: at <= end <= 8192 + 8, and the input has 8192 + 16 bytes.
                let next = unsafe { self.input.as_ptr().add(at[$stream]).cast::<u64>().read_unaligned() };
                bits[$stream] = (u64::from_be(next) | 1) << used[$stream];
            };
        }
        macro_rules! advance {
            ($stream:expr) => {
                let shifted = bits[$stream].trailing_zeros();
                at[$stream] = (at[$stream] + (shifted / 8) as usize).min(self.end);
                used[$stream] = shifted % 8;
            };
        }
        macro_rules! symbol {
            ($stream:expr) => {{
                let entry = table[(bits[$stream] >> (64 - LEN_MAX)) as usize];
                // The length is in the low six bits.
                bits[$stream] <<= entry & 63;
                (entry >> 8) as u8
            }};
        }
        let (rounds, rest) = symbols.as_chunks_mut::<{ 5 * STREAMS }>();
        for round in rounds {
            refill!(0);
            refill!(1);
            refill!(2);
            refill!(3);
            // Five symbols a stream take at most 50 of 56 bits.
            for four in round.as_chunks_mut::<4>().0 {
                *four = [symbol!(0), symbol!(1), symbol!(2), symbol!(3)];
            }
            advance!(0);
            advance!(1);
            advance!(2);
            advance!(3);
        }
        if !rest.is_empty() {
            refill!(0);
            refill!(1);
            refill!(2);
            refill!(3);
            for (number, slot) in rest.iter_mut().enumerate() {
                *slot = match number % STREAMS {
                    0 => symbol!(0),
                    1 => symbol!(1),
                    2 => symbol!(2),
                    _ => symbol!(3),
                };
            }
            advance!(0);
            advance!(1);
            advance!(2);
            advance!(3);
        }
        (self.at, self.used) = (at, used);
    }
}
