//! Inflating, with a device's own limits and error codes, able to stop and go on.

use super::bits::{Bits, Exhausted};
use super::decode_table::{DecodeTable, Malformed, NoSymbol, BASE, END, LITERAL, MEANINGLESS};
use super::header::CODE_LENGTH_ORDER;
use super::symbols::{DISTANCE_BASE, DISTANCE_EXTRA, LENGTH_BASE, LENGTH_EXTRA, MATCH_MAX};
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

/// Both codes of a block.
struct Tables {
    literals: LiteralTable,
    distances: DistanceTable,
}

impl Tables {
    fn new() -> Box<Self> {
        Box::new(Tables { literals: LiteralTable::new(), distances: DistanceTable::new() })
    }
}

/// Where output goes: a buffer, behind which `history` can be thought.
pub(crate) struct Output<'a> {
    pub buffer: &'a mut [u8],
    /// Bytes written so far.
    pub len: usize,
    /// What came before the buffer.
    pub history: &'a [u8],
    /// Longest distance: [`crate::aecs::WINDOW`] for a device.
    pub window: usize,
}

/// Why inflating stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At the end-of-block symbol that was asked for, or that ends the stream.
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
    /// Any block's.
    AnyBlock,
    /// The final block's.
    FinalBlock,
}

/// What the next bit of input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// A block header's first. `after_block` when a block has ended before.
    Header { after_block: bool },
    /// A token's first.
    Tokens { is_final: bool, is_fixed: bool },
    /// A stored block's next byte's, of `left`.
    Stored { is_final: bool, left: u16 },
    /// None: the final block has ended.
    Ended,
}

/// Code lengths of the current dynamic block, kept for those who save the state.
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

    /// Begins a stream.
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

    /// Inflates until something stops it.
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
            // Without any code, the first one that is read is not assigned.
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

/// Room that the quick loop needs: a longest match, and what eight-byte copies write beyond it.
const OUTPUT_PLENTY: usize = MATCH_MAX + 16;

/// Inflates tokens of one block: [`Stop::End`] at its end-of-block symbol.
fn tokens(tables: &Tables, bits: &mut Bits<'_>, output: &mut Output<'_>) -> Stop {
    loop {
        if bits.has_plenty() && output.buffer.len() - output.len >= OUTPUT_PLENTY {
            match tokens_quick(tables, bits, output) {
                Some(stop) => return stop,
                None => continue,
            }
        }
        let before = *bits;
        match token(tables, bits, output) {
            Ok(None) => {}
            Ok(Some(Stop::Output)) => {
                *bits = before;
                return Stop::Output;
            }
            Ok(Some(stop)) => return stop,
            Err(Fail::Code(code)) => return Stop::Error(code),
            Err(Fail::Exhausted) => {
                *bits = before;
                return Stop::Input { in_header: false };
            }
        }
    }
}

/// One token, with every check.
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
        return Err(Fail::Code(ErrorCode::BAD_MATCH_LENGTH));
    }
    let length = (entry >> 16) as usize + bits.take(entry >> 4 & 15)? as usize;
    let entry = tables.distances.read(bits).map_err(|no| no_symbol(no, ErrorCode::BAD_DISTANCE_CODE))?;
    if entry & MEANINGLESS != 0 {
        return Err(Fail::Code(ErrorCode::BAD_DISTANCE));
    }
    let distance = (entry >> 16) as usize + bits.take(entry >> 4 & 15)? as usize;
    check_distance(distance, output).map_err(Fail::Code)?;
    if length > output.buffer.len() - output.len {
        return Ok(Some(Stop::Output));
    }
    for at in output.len..output.len + length {
        output.buffer[at] = if distance <= at {
            output.buffer[at - distance]
        } else {
            output.history[output.history.len() + at - distance]
        };
    }
    output.len += length;
    Ok(None)
}

fn no_symbol(no: NoSymbol, code: ErrorCode) -> Fail {
    match no {
        NoSymbol::Exhausted => Fail::Exhausted,
        NoSymbol::Unassigned => Fail::Code(code),
    }
}

#[inline(always)]
fn check_distance(distance: usize, output: &Output<'_>) -> Result<(), ErrorCode> {
    if distance > output.window {
        Err(ErrorCode::BAD_DISTANCE)
    } else if distance > output.len + output.history.len() {
        Err(ErrorCode::BEFORE_START)
    } else {
        Ok(())
    }
}

/// Tokens while input and output have room for any of them; `None` when one of them has not.
#[inline(never)]
fn tokens_quick(tables: &Tables, bits: &mut Bits<'_>, output: &mut Output<'_>) -> Option<Stop> {
    let limit = output.buffer.len() - OUTPUT_PLENTY;
    let (history, window) = (output.history.len(), output.window);
    let buffer = &mut *output.buffer;
    let mut len = output.len;
    // A local copy stays in registers.
    let mut reader = *bits;
    let stop = loop {
        if len > limit || !reader.has_plenty() {
            break None;
        }
        reader.refill_plenty();
        let mut entry = tables.literals.direct(reader.window());
        if entry & LITERAL != 0 {
            reader.consume(entry & 15);
            buffer[len] = (entry >> 16) as u8;
            len += 1;
            entry = tables.literals.direct(reader.window());
            if entry & LITERAL != 0 {
                reader.consume(entry & 15);
                buffer[len] = (entry >> 16) as u8;
                len += 1;
                entry = tables.literals.direct(reader.window());
                if entry & LITERAL != 0 {
                    reader.consume(entry & 15);
                    buffer[len] = (entry >> 16) as u8;
                    len += 1;
                    continue;
                }
            }
            // Up to 20 bits are gone and a match takes up to 48.
            if !reader.has_plenty() {
                break None;
            }
            reader.refill_plenty();
        }
        if entry == 0 {
            entry = match tables.literals.counted(reader.window(), reader.count()) {
                Ok(entry) => entry,
                Err(_) => break Some(Stop::Error(ErrorCode::BAD_LITERAL_CODE)),
            };
            if entry & LITERAL != 0 {
                reader.consume(entry & 15);
                buffer[len] = (entry >> 16) as u8;
                len += 1;
                continue;
            }
        }
        reader.consume(entry & 15);
        if entry & BASE == 0 {
            if entry & END != 0 {
                break Some(Stop::End);
            }
            break Some(Stop::Error(ErrorCode::BAD_MATCH_LENGTH));
        }
        let extra = entry >> 4 & 15;
        let length = (entry >> 16) as usize + (reader.window() & ((1 << extra) - 1)) as usize;
        reader.consume(extra);

        let mut entry = tables.distances.direct(reader.window());
        if entry == 0 {
            entry = match tables.distances.counted(reader.window(), reader.count()) {
                Ok(entry) => entry,
                Err(_) => break Some(Stop::Error(ErrorCode::BAD_DISTANCE_CODE)),
            };
        }
        if entry & BASE == 0 {
            break Some(Stop::Error(ErrorCode::BAD_DISTANCE));
        }
        reader.consume(entry & 15);
        let extra = entry >> 4 & 15;
        let distance = (entry >> 16) as usize + (reader.window() & ((1 << extra) - 1)) as usize;
        reader.consume(extra);

        if distance > window {
            break Some(Stop::Error(ErrorCode::BAD_DISTANCE));
        }
        if distance > len {
            if distance > len + history {
                break Some(Stop::Error(ErrorCode::BEFORE_START));
            }
            for at in len..len + length {
                buffer[at] = if distance <= at {
                    buffer[at - distance]
                } else {
                    output.history[history + at - distance]
                };
            }
            len += length;
            continue;
        }
        copy_match(buffer, len, distance, length);
        len += length;
    };
    *bits = reader;
    output.len = len;
    stop
}

/// Copies a match; up to 15 bytes behind it may be overwritten.
#[inline(always)]
fn copy_match(buffer: &mut [u8], at: usize, distance: usize, length: usize) {
    debug_assert!((1..=at).contains(&distance) && at + length + 16 <= buffer.len());
    if distance >= 8 {
        let mut done = 0;
        while done < length {
            // SAFETY: `distance <= at`, and the caller's loop keeps OUTPUT_PLENTY = 258 + 16 bytes
            // from `at` on inside the buffer; both eight-byte ranges are within it and, being
            // `distance >= 8` apart, do not overlap.
            unsafe {
                let to = buffer.as_mut_ptr().add(at + done);
                std::ptr::copy_nonoverlapping(to.sub(distance), to, 8);
            }
            done += 8;
        }
    } else if distance == 1 {
        let byte = buffer[at - 1];
        buffer[at..at + length].fill(byte);
    } else {
        for to in at..at + length {
            buffer[to] = buffer[to - distance];
        }
    }
}
