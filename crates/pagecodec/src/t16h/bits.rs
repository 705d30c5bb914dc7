//! Four interleaved bit streams, most significant bit first. Symbol `j` of a context goes to stream `j mod 4`.

use super::books::TABLE;
use super::huffman::LEN_MAX;
use super::symbols::SYMBOLS_MAX;

const STREAMS: usize = 4;
/// Longest stream: a quarter of the symbols of six contexts at 10 bits, and room for whole-word stores.
const STREAM_MAX: usize = 6 * (SYMBOLS_MAX / STREAMS + 1) * LEN_MAX as usize / 8 + 16;
/// Bytes that may be read behind the streams.
const PADDING: usize = 16;

pub(crate) struct Streams {
    bytes: [[u8; STREAM_MAX]; STREAMS],
    ends: [usize; STREAMS],
    /// Bits not yet in `bytes`, at the low end; fewer than 8 between calls.
    pending: [u64; STREAMS],
    pending_len: [u32; STREAMS],
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
    pub(crate) fn put(&mut self, symbols: &[u8], codes: &[u16; 256]) {
        let (rounds, rest) = symbols.as_chunks::<16>();
        let (mut pending, mut lens, mut ends) = (self.pending, self.pending_len, self.ends);
        for round in rounds {
            for stream in 0..STREAMS {
                let (mut bits, mut len) = (pending[stream], lens[stream]);
                for at in 0..4 {
                    let code = codes[usize::from(round[4 * at + stream])];
                    let code_len = u32::from(code & 15);
                    bits = bits << code_len | u64::from(code >> 4);
                    len += code_len;
                }
                // At most 7 + 40 bits.
                let to = &mut self.bytes[stream][ends[stream]..ends[stream] + 8];
                to.copy_from_slice(&(bits << (64 - len)).to_be_bytes());
                ends[stream] += len as usize / 8;
                lens[stream] = len % 8;
                pending[stream] = bits & ((1 << lens[stream]) - 1);
            }
        }
        for (at, &symbol) in rest.iter().enumerate() {
            let stream = at % STREAMS;
            let code = codes[usize::from(symbol)];
            let code_len = u32::from(code & 15);
            let (bits, len) = (pending[stream] << code_len | u64::from(code >> 4), lens[stream] + code_len);
            let to = &mut self.bytes[stream][ends[stream]..ends[stream] + 8];
            to.copy_from_slice(&(bits << (64 - len)).to_be_bytes());
            ends[stream] += len as usize / 8;
            lens[stream] = len % 8;
            pending[stream] = bits & ((1 << lens[stream]) - 1);
        }
        (self.pending, self.pending_len, self.ends) = (pending, lens, ends);
    }

    /// The streams' lengths in bytes, the last one padded with zero bits.
    pub(crate) fn finish(&mut self) -> [usize; STREAMS] {
        std::array::from_fn(|stream| self.ends[stream] + usize::from(self.pending_len[stream] > 0))
    }

    pub(crate) fn bytes(&self, stream: usize, len: usize) -> &[u8] {
        &self.bytes[stream][..len]
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
        Some(Reader {
            input: &self.input,
            end: bytes.len() + 8,
            at: starts,
            bits: [0; STREAMS],
            len: [0; STREAMS],
        })
    }
}

/// Reads symbols from four streams. Reads past the end of the input yield zero bits.
pub(crate) struct Reader<'a> {
    input: &'a [u8; 8192 + PADDING],
    /// The last place from which eight bytes may be read.
    end: usize,
    at: [usize; STREAMS],
    /// The next bits, left-aligned.
    bits: [u64; STREAMS],
    len: [u32; STREAMS],
}

impl Reader<'_> {
    /// Fills `symbols` with the next context's.
    pub(crate) fn take(&mut self, symbols: &mut [u8], table: &[u16; TABLE]) {
        let (mut bits, mut lens, mut at) = (self.bits, self.len, self.at);
        macro_rules! refill {
            ($stream:expr) => {
                // SAFETY: at <= end <= 8192 + 8, and the input has 8192 + 16 bytes.
                let next = unsafe { self.input.as_ptr().add(at[$stream]).cast::<u64>().read_unaligned() };
                bits[$stream] |= u64::from_be(next) >> lens[$stream];
                at[$stream] = (at[$stream] + ((63 - lens[$stream]) / 8) as usize).min(self.end);
                lens[$stream] |= 56;
            };
        }
        macro_rules! symbol {
            ($stream:expr) => {{
                let entry = table[(bits[$stream] >> (64 - LEN_MAX)) as usize];
                let len = u32::from(entry & 15);
                bits[$stream] <<= len;
                lens[$stream] -= len;
                (entry >> 8) as u8
            }};
        }
        let (rounds, rest) = symbols.as_chunks_mut::<16>();
        for round in rounds {
            refill!(0);
            refill!(1);
            refill!(2);
            refill!(3);
            // Four symbols a stream take at most 40 of 56 bits.
            for four in round.as_chunks_mut::<4>().0 {
                *four = [symbol!(0), symbol!(1), symbol!(2), symbol!(3)];
            }
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
        }
        (self.bits, self.len, self.at) = (bits, lens, at);
    }
}
