//! Inflating with a device's own limits and error codes, resumable.
//!
//! No library serves: none tells a device's 36 errors apart, bounds distances within its output
//! buffer, stops before a token that does not fit, or hands out the codes that an AECS keeps.

use super::bits::{Bits, Exhausted};
use super::decode_table::{DecodeTable, Malformed, NoSymbol, BASE, END, LITERAL, MEANINGLESS};
use super::dynamic::CODE_LENGTH_ORDER;
use super::symbols::{DISTANCE_BASE, DISTANCE_EXTRA, LENGTH_BASE, LENGTH_EXTRA};
use crate::aecs::{decoder_state, DISTANCES, LITERALS};
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

/// An output buffer, with `history` logically before it.
pub(crate) struct Output<'a> {
    pub buffer: &'a mut [u8],
    pub len: usize,
    /// The output before the buffer.
    pub history: &'a [u8],
    /// Longest distance: [`crate::aecs::WINDOW`] for a device.
    pub window: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At the requested end-of-block symbol, or at the stream's end.
    End,
    /// The input ended. `in_header`: inside a dynamic block's header.
    Input { in_header: bool },
    /// The next token does not fit into the output.
    Output,
    /// The stream is damaged, or not for this device.
    Error(ErrorCode),
}

/// Which end-of-block symbol to stop at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopAt {
    AnyBlock,
    FinalBlock,
}

/// The kind of the next input bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// A block header's first bit. `after_block` if a block has ended before.
    Header { after_block: bool },
    /// A token's first bit.
    Tokens { is_final: bool, is_fixed: bool },
    /// A bit of a stored block's next byte, of `left`.
    Stored { is_final: bool, left: u16 },
    /// The final block has ended.
    Ended,
}

/// Code lengths of the current dynamic block, kept to save the state.
#[derive(Clone)]
pub(crate) struct Lengths {
    pub literals: [u8; LITERALS],
    pub distances: [u8; DISTANCES],
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
    pub lengths: Lengths,
    pub state: State,
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
            lengths: Lengths { literals: [0; LITERALS], distances: [0; DISTANCES] },
            state: State::Header { after_block: false },
        }
    }

    pub fn reset(&mut self) {
        self.state = State::Header { after_block: false };
    }

    /// Continues in the state `code` of an AECS, with the code lengths already in
    /// [`Inflater::lengths`].
    pub fn restore(
        &mut self,
        code: u16,
        is_fixed: bool,
        stored_left: u16,
        after_block: bool,
    ) -> Result<(), ErrorCode> {
        self.state = match code {
            decoder_state::HEADER => State::Header { after_block },
            decoder_state::TOKEN | decoder_state::TOKEN_FINAL => {
                if !is_fixed {
                    let lengths = self.lengths.clone();
                    self.build(&lengths.literals, &lengths.distances).map_err(|_| ErrorCode::INVALID_AECS)?;
                }
                State::Tokens { is_final: code == decoder_state::TOKEN_FINAL, is_fixed }
            }
            decoder_state::STORED => State::Stored { is_final: false, left: stored_left },
            decoder_state::STORED_FINAL => State::Stored { is_final: true, left: stored_left },
            decoder_state::ENDED => State::Ended,
            _ => return Err(ErrorCode::INVALID_AECS),
        };
        Ok(())
    }

    /// Inflates until a [`Stop`].
    pub fn run(&mut self, bits: &mut Bits<'_>, output: &mut Output<'_>, stop_at: Option<StopAt>) -> Stop {
        loop {
            let block_ended = match self.state {
                State::Ended => return Stop::End,
                State::Header { .. } => {
                    let before = *bits;
                    match self.header(bits) {
                        Ok(state) => self.state = state,
                        Err(Fail::Code(code)) => return Stop::Error(code),
                        Err(Fail::Exhausted) => {
                            *bits = before;
                            // The type's bits say dynamic.
                            let mut peek = before;
                            let in_header = peek.take(3).is_ok_and(|header| header >> 1 == 2);
                            return Stop::Input { in_header };
                        }
                    }
                    None
                }
                State::Stored { is_final, left } => {
                    let room = &mut output.buffer[output.len..];
                    let most = usize::from(left).min(room.len());
                    let copied = bits.copy(&mut room[..most]);
                    output.len += copied;
                    let left = left - copied as u16;
                    self.state = State::Stored { is_final, left };
                    if left == 0 {
                        Some(is_final)
                    } else if copied < most {
                        return Stop::Input { in_header: false };
                    } else {
                        return Stop::Output;
                    }
                }
                State::Tokens { is_final, is_fixed } => {
                    let tables = if is_fixed { &self.fixed } else { &self.dynamic };
                    match tokens(tables, bits, output) {
                        Stop::End => Some(is_final),
                        other => return other,
                    }
                }
            };
            if let Some(is_final) = block_ended {
                self.state = if is_final { State::Ended } else { State::Header { after_block: true } };
                if stop_at == Some(StopAt::AnyBlock) {
                    return Stop::End;
                }
            }
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
        self.lengths.literals.fill(0);
        self.lengths.literals[..literal_count].copy_from_slice(literals);
        self.lengths.distances.fill(0);
        self.lengths.distances[..distance_count].copy_from_slice(distances);
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
fn tokens(tables: &Tables, bits: &mut Bits<'_>, output: &mut Output<'_>) -> Stop {
    loop {
        let before = *bits;
        let stop = match token(tables, bits, output) {
            Ok(None) => continue,
            Ok(Some(Stop::Output)) => Stop::Output,
            Ok(Some(stop)) => return stop,
            Err(Fail::Code(code)) => return Stop::Error(code),
            Err(Fail::Exhausted) => Stop::Input { in_header: false },
        };
        *bits = before;
        return stop;
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
    let (from, history) = (output.len, output.history.len());
    if distance > output.window {
        return Err(Fail::Code(ErrorCode::BAD_DISTANCE));
    }
    if distance > from + history {
        return Err(Fail::Code(ErrorCode::BEFORE_START));
    }
    if length > output.buffer.len() - from {
        return Ok(Some(Stop::Output));
    }
    output.len += length;
    if distance >= length && distance <= from {
        output.buffer.copy_within(from - distance..from - distance + length, from);
        return Ok(None);
    }
    for at in from..from + length {
        output.buffer[at] = match at.checked_sub(distance) {
            Some(earlier) => output.buffer[earlier],
            None => output.history[history + at - distance],
        };
    }
    Ok(None)
}

fn no_symbol(no: NoSymbol, code: ErrorCode) -> Fail {
    match no {
        NoSymbol::Exhausted => Fail::Exhausted,
        NoSymbol::Unassigned => Fail::Code(code),
    }
}
