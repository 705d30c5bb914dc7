//! Inflating with a device's own limits and error codes.
//!
//! No library serves: none tells a device's 36 errors apart, bounds distances within its output
//! buffer, or stops before a token that does not fit.

use super::bits::{Bits, Exhausted};
use super::decode_table::{DecodeTable, Malformed, NoSymbol, BASE, END, LITERAL, MEANINGLESS};
use super::dynamic::CODE_LENGTH_ORDER;
use super::symbols::{DISTANCE_BASE, DISTANCE_EXTRA, LENGTH_BASE, LENGTH_EXTRA};
use crate::aecs::{DISTANCES, LITERALS};
use crate::{assumptions, ErrorCode};

type LiteralTable = DecodeTable<10, 1024>;
type DistanceTable = DecodeTable<8, 256>;

fn literal_entry(symbol: usize) -> u32 {
    match symbol {
        0..=255 => (symbol as u32) << 16 | LITERAL,
        256 => END,
        257..=285 => {
            let slot = symbol - 257;
            u32::from(LENGTH_BASE[slot]) << 16 | u32::from(LENGTH_EXTRA[slot]) << 4 | BASE
        }
        _ => MEANINGLESS,
    }
}

fn distance_entry(symbol: usize) -> u32 {
    match symbol {
        0..=29 => u32::from(DISTANCE_BASE[symbol]) << 16 | u32::from(DISTANCE_EXTRA[symbol]) << 4 | BASE,
        _ => MEANINGLESS,
    }
}

struct Tables {
    literals: LiteralTable,
    distances: DistanceTable,
}

impl Tables {
    fn new() -> Box<Self> {
        Box::new(Tables { literals: LiteralTable::new(), distances: DistanceTable::new() })
    }
}

/// An output buffer.
pub(crate) struct Output<'a> {
    pub buffer: &'a mut [u8],
    pub len: usize,
    /// Longest distance: [`crate::aecs::WINDOW`] for a device.
    pub window: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At the end-of-block symbol.
    End,
    /// The next token does not fit into the output. Another call continues there.
    Output,
}

/// The kind of the next input bit.
#[derive(Debug, Clone, Copy)]
enum State {
    /// A block header's first bit.
    Header,
    /// A token's first bit.
    Tokens { is_final: bool, is_fixed: bool },
    /// A bit of a stored block's next byte, of `left`.
    Stored { is_final: bool, left: u16 },
}

enum Fail {
    Exhausted,
    Code(ErrorCode),
}

impl From<Exhausted> for Fail {
    fn from(_: Exhausted) -> Self {
        Self::Exhausted
    }
}

/// An inflater: tables and the place in the stream.
pub(crate) struct Inflater {
    fixed: Box<Tables>,
    dynamic: Box<Tables>,
    code_lengths: Box<DecodeTable<7, 128>>,
    state: State,
}

impl Inflater {
    pub fn new() -> Self {
        let mut fixed = Tables::new();
        let mut lengths = [8u8; 288];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        fixed.literals.build(&lengths, literal_entry).expect("the fixed code is complete");
        fixed.distances.build(&[5; 32], distance_entry).expect("the fixed code is complete");
        Inflater {
            fixed,
            dynamic: Tables::new(),
            code_lengths: Box::new(DecodeTable::new()),
            state: State::Header,
        }
    }

    /// Begins a stream.
    pub fn reset(&mut self) {
        self.state = State::Header;
    }

    /// Inflates until a [`Stop`]: the end of the final block, or of any with `at_any_block`.
    ///
    /// # Errors
    /// The stream is damaged, cut, or not for this device.
    pub fn run(
        &mut self,
        bits: &mut Bits<'_>,
        output: &mut Output<'_>,
        at_any_block: bool,
    ) -> Result<Stop, ErrorCode> {
        loop {
            let is_final = match self.state {
                State::Header => {
                    // The type's bits say dynamic.
                    let is_dynamic = { *bits }.take(3).is_ok_and(|header| header >> 1 == 2);
                    self.state = self.header(bits).map_err(|fail| match fail {
                        Fail::Exhausted if is_dynamic => assumptions::TRUNCATED_HEADER,
                        Fail::Exhausted => ErrorCode::NO_EOB,
                        Fail::Code(code) => code,
                    })?;
                    continue;
                }
                State::Stored { is_final, left } => {
                    let room = &mut output.buffer[output.len..];
                    let most = usize::from(left).min(room.len());
                    let copied = bits.copy(&mut room[..most]);
                    output.len += copied;
                    if copied < most {
                        return Err(ErrorCode::NO_EOB);
                    }
                    if most < usize::from(left) {
                        self.state = State::Stored { is_final, left: left - most as u16 };
                        return Ok(Stop::Output);
                    }
                    is_final
                }
                State::Tokens { is_final, is_fixed } => {
                    let tables = if is_fixed { &self.fixed } else { &self.dynamic };
                    match tokens(tables, bits, output)? {
                        Stop::End => is_final,
                        Stop::Output => return Ok(Stop::Output),
                    }
                }
            };
            if is_final || at_any_block {
                return Ok(Stop::End);
            }
            self.state = State::Header;
        }
    }

    fn header(&mut self, bits: &mut Bits<'_>) -> Result<State, Fail> {
        let is_final = bits.take(1)? == 1;
        match bits.take(2)? {
            0 => {
                bits.align();
                let left = bits.take(16)?;
                if bits.take(16)? != !left & 0xffff {
                    return Err(Fail::Code(ErrorCode::STORED_LENGTH_MISMATCH));
                }
                Ok(State::Stored { is_final, left: left as u16 })
            }
            1 => Ok(State::Tokens { is_final, is_fixed: true }),
            2 => {
                self.dynamic_header(bits)?;
                Ok(State::Tokens { is_final, is_fixed: false })
            }
            _ => Err(Fail::Code(ErrorCode::BAD_BLOCK_TYPE)),
        }
    }

    fn dynamic_header(&mut self, bits: &mut Bits<'_>) -> Result<(), Fail> {
        let literal_count = bits.take(5)? as usize + 257;
        let distance_count = bits.take(5)? as usize + 1;
        let order_count = bits.take(4)? as usize + 4;
        if literal_count > LITERALS {
            return Err(Fail::Code(ErrorCode::TOO_MANY_LITERAL_CODES));
        }
        if distance_count > DISTANCES {
            return Err(Fail::Code(ErrorCode::TOO_MANY_DISTANCE_CODES));
        }
        let mut order = [0u8; 19];
        for &symbol in &CODE_LENGTH_ORDER[..order_count] {
            order[usize::from(symbol)] = bits.take(3)? as u8;
        }
        match self.code_lengths.build(&order, |symbol| (symbol as u32) << 16 | LITERAL) {
            // Without any code, the first one read is unassigned.
            Ok(()) | Err(Malformed::Empty) => {}
            Err(Malformed::Oversubscribed) => return Err(Fail::Code(ErrorCode::CODE_LENGTHS_OVERSUBSCRIBED)),
        }

        let mut lengths = [0u8; LITERALS + DISTANCES];
        let total = literal_count + distance_count;
        let mut at = 0;
        while at < total {
            let entry = self.code_lengths.read(bits).map_err(|no| match no {
                NoSymbol::Exhausted => Fail::Exhausted,
                NoSymbol::Unassigned => Fail::Code(ErrorCode::BAD_CODE_LENGTH_CODE),
            })?;
            let (value, run) = match entry >> 16 {
                16 if at == 0 => return Err(Fail::Code(ErrorCode::FIRST_LENGTH_REPEATS)),
                16 if at == literal_count && assumptions::FIRST_DISTANCE_MAY_NOT_REPEAT => {
                    return Err(Fail::Code(ErrorCode::FIRST_DISTANCE_REPEATS))
                }
                16 => (lengths[at - 1], 3 + bits.take(2)? as usize),
                17 => (0, 3 + bits.take(3)? as usize),
                18 => (0, 11 + bits.take(7)? as usize),
                length => (length as u8, 1),
            };
            if at + run > total {
                return Err(Fail::Code(if at < literal_count {
                    ErrorCode::WRONG_LITERAL_COUNT
                } else {
                    ErrorCode::WRONG_DISTANCE_COUNT
                }));
            }
            lengths[at..at + run].fill(value);
            at += run;
        }
        let (literals, distances) = lengths[..total].split_at(literal_count);
        self.build(literals, distances).map_err(Fail::Code)
    }

    fn build(&mut self, literals: &[u8], distances: &[u8]) -> Result<(), ErrorCode> {
        self.dynamic.literals.build(literals, literal_entry).map_err(|malformed| match malformed {
            Malformed::Oversubscribed => ErrorCode::LITERALS_OVERSUBSCRIBED,
            Malformed::Empty => ErrorCode::NO_LITERAL_CODES,
        })?;
        match self.dynamic.distances.build(distances, distance_entry) {
            // A block without matches needs no distance codes.
            Ok(()) | Err(Malformed::Empty) => Ok(()),
            Err(Malformed::Oversubscribed) => Err(ErrorCode::DISTANCES_OVERSUBSCRIBED),
        }
    }
}

/// Inflates tokens of one block: [`Stop::End`] at its end-of-block symbol.
fn tokens(tables: &Tables, bits: &mut Bits<'_>, output: &mut Output<'_>) -> Result<Stop, ErrorCode> {
    loop {
        let before = *bits;
        match token(tables, bits, output) {
            Ok(None) => {}
            Ok(Some(Stop::End)) => return Ok(Stop::End),
            Ok(Some(Stop::Output)) => {
                *bits = before;
                return Ok(Stop::Output);
            }
            Err(Fail::Exhausted) => return Err(ErrorCode::NO_EOB),
            Err(Fail::Code(code)) => return Err(code),
        }
    }
}

#[inline(always)]
fn token(tables: &Tables, bits: &mut Bits<'_>, output: &mut Output<'_>) -> Result<Option<Stop>, Fail> {
    let entry = tables.literals.read(bits).map_err(|no| no_symbol(no, ErrorCode::BAD_LITERAL_CODE))?;
    if entry & LITERAL != 0 {
        let Some(byte) = output.buffer.get_mut(output.len) else { return Ok(Some(Stop::Output)) };
        *byte = (entry >> 16) as u8;
        output.len += 1;
        return Ok(None);
    }
    if entry & END != 0 {
        return Ok(Some(Stop::End));
    }
    if entry & MEANINGLESS != 0 {
        return Err(Fail::Code(assumptions::MEANINGLESS_LENGTH));
    }
    let length = (entry >> 16) as usize + bits.take(entry >> 4 & 15)? as usize;
    let entry = tables.distances.read(bits).map_err(|no| no_symbol(no, ErrorCode::BAD_DISTANCE_CODE))?;
    if entry & MEANINGLESS != 0 {
        return Err(Fail::Code(assumptions::MEANINGLESS_DISTANCE));
    }
    let distance = (entry >> 16) as usize + bits.take(entry >> 4 & 15)? as usize;
    let from = output.len;
    if distance > output.window {
        return Err(Fail::Code(ErrorCode::BAD_DISTANCE));
    }
    if distance > from {
        return Err(Fail::Code(ErrorCode::BEFORE_START));
    }
    if length > output.buffer.len() - from {
        return Ok(Some(Stop::Output));
    }
    output.len += length;
    if distance >= length {
        output.buffer.copy_within(from - distance..from - distance + length, from);
        return Ok(None);
    }
    for at in from..from + length {
        output.buffer[at] = output.buffer[at - distance];
    }
    Ok(None)
}

fn no_symbol(no: NoSymbol, code: ErrorCode) -> Fail {
    match no {
        NoSymbol::Exhausted => Fail::Exhausted,
        NoSymbol::Unassigned => Fail::Code(code),
    }
}
