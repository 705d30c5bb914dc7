//! The decoder of page LZ: the common part, and the checked decoder in plain Rust.

use super::{copy16, copy8, Damaged, HEADER, MATCH_MIN};
use crate::Isa;

/// Bytes that the fast loop needs from its place on: 14 literals, a match of 16, 8 overrun.
const FAST_ROOM: usize = 14 + 24;

#[inline]
pub(super) fn extension(rest: &mut &[u8]) -> Result<usize, Damaged> {
    let (&first, tail) = rest.split_first().ok_or(Damaged)?;
    if first < 255 {
        *rest = tail;
        return Ok(first as usize);
    }
    let (bytes, tail) = tail.split_first_chunk::<2>().ok_or(Damaged)?;
    *rest = tail;
    Ok(u16::from_le_bytes(*bytes) as usize)
}

/// Decodes `object` into `out`, whose length is the encoder's input's, with the instruction set
/// `isa`. Any bytes yield an error or some content, the same with every instruction set.
///
/// # Errors
/// [`Damaged`] if the object contradicts itself or yields another length.
///
/// # Panics
/// If the machine lacks `isa`.
pub fn decode(isa: Isa, object: &[u8], out: &mut [u8]) -> Result<(), Damaged> {
    assert!(isa.is_available(), "this machine lacks {isa}");
    let parts = Parts::of(object)?;
    match isa {
        // SAFETY: the machine has the instructions (asserted above); AVX-512 includes them.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 if out.len() <= super::INPUT_MAX => unsafe {
            super::steps::decode(&parts, out)
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => unsafe { decode_avx2(&parts, out) },
        _ => decode_portable(&parts, out),
    }
}

pub(super) struct Parts<'a> {
    /// All streams, literals first. A literal read may overrun into the following streams.
    pub(super) body: &'a [u8],
    pub(super) literals_len: usize,
    pub(super) sequences: &'a [[u8; 2]],
    /// Literals before each match, two nibbles a byte.
    pub(super) runs: &'a [u8],
    pub(super) extensions: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(object: &'a [u8]) -> Result<Self, Damaged> {
        let (header, body) = object.split_first_chunk::<HEADER>().ok_or(Damaged)?;
        let count = u16::from_le_bytes([header[0], header[1]]) as usize;
        let literals_len = u16::from_le_bytes([header[2], header[3]]) as usize;
        let rest = body.get(literals_len..).ok_or(Damaged)?;
        let (sequences, rest) = rest.split_at_checked(2 * count).ok_or(Damaged)?;
        let (runs, extensions) = rest.split_at_checked(count.div_ceil(2)).ok_or(Damaged)?;
        Ok(Parts { body, literals_len, sequences: sequences.as_chunks().0, runs, extensions })
    }
}

/// [`decode_portable`] with the instructions of Haswell, which the machine must have.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn decode_avx2(parts: &Parts<'_>, out: &mut [u8]) -> Result<(), Damaged> {
    decode_portable(parts, out)
}

#[inline(always)]
fn decode_portable(parts: &Parts<'_>, out: &mut [u8]) -> Result<(), Damaged> {
    let Parts { body, literals_len, sequences, runs: nibbles, extensions: mut rest } = *parts;
    let count = sequences.len();
    let (mut from, mut to) = (0, 0);
    let mut number = 0;
    // The fast loop copies in steps of 16 bytes that overrun, and stops when there is no room for
    // that. The careful loop handles unusual sequences and the last bytes.
    let to_fast = out.len().saturating_sub(FAST_ROOM);
    let from_fast = body.len().saturating_sub(16 + 14);
    while number < count {
        while number < count && to < to_fast && from < from_fast {
            // SAFETY: `number < count`, the length of `sequences`; `nibbles` has half as many
            // bytes, rounded up.
            let (sequence, nibble) =
                unsafe { (*sequences.get_unchecked(number), *nibbles.get_unchecked(number / 2)) };
            let sequence = u16::from_le_bytes(sequence) as usize;
            let run = (nibble >> (4 * (number % 2)) & 15) as usize;
            let (offset, len) = (sequence & 0xfff, (sequence >> 12) + MATCH_MIN);
            let match_at = to + run;
            if (run == 15) | (len == 15 + MATCH_MIN) | (offset < 8) | (offset > match_at) {
                break;
            }
            // SAFETY: `run <= 14` and `len <= 18`, so writes end before `to + 14 + 24` and literal
            // reads before `from + 16`, both inside (the loop's condition). The match's source
            // starts at `match_at - offset >= 0`, before its destination.
            unsafe {
                copy16(body.as_ptr().add(from), out.as_mut_ptr().add(to));
                let at = out.as_mut_ptr().add(match_at);
                let source = at.sub(offset);
                // Eight at a time: a load is forwarded only if one store holds all its bytes.
                copy8(source, at);
                copy8(source.add(8), at.add(8));
                copy8(source.add(16), at.add(16));
            }
            from += run;
            to = match_at + len;
            number += 1;
        }
        if number == count {
            break;
        }
        let sequence = u16::from_le_bytes(sequences[number]) as usize;
        let mut run = (nibbles[number / 2] >> (4 * (number % 2)) & 15) as usize;
        let mut len = (sequence >> 12) + MATCH_MIN;
        if run == 15 {
            run += extension(&mut rest)?;
        }
        if len == 15 + MATCH_MIN {
            len += extension(&mut rest)?;
        }
        let offset = sequence & 0xfff;
        let match_at = to + run;
        let end = match_at + len;
        if from + run > literals_len || end > out.len() || offset == 0 || offset > match_at {
            return Err(Damaged);
        }
        out[to..match_at].copy_from_slice(&body[from..from + run]);
        // All but the last bytes of a match that ends near the output's end.
        let wild = len.min((out.len() - match_at).saturating_sub(16));
        if wild > 0 {
            // SAFETY: 16 bytes of output follow the `wild` ones; `match_at - offset >= 0`.
            unsafe {
                let to = out.as_mut_ptr().add(match_at);
                if offset >= 16 {
                    for done in (0..wild).step_by(16) {
                        copy16(to.sub(offset).add(done), to.add(done));
                    }
                } else {
                    repeat(to, offset, wild);
                }
            }
        }
        for at in match_at + wild..end {
            out[at] = out[at - offset];
        }
        from += run;
        to = end;
        number += 1;
    }
    // The fast loop does not check for the end of the literals.
    if from > literals_len {
        return Err(Damaged);
    }
    if out.len() - to != literals_len - from || !rest.is_empty() {
        return Err(Damaged);
    }
    out[to..].copy_from_slice(&body[from..literals_len]);
    Ok(())
}

/// Repeats the `offset` (1 to 15) bytes before `to` over `len` bytes from `to`, and up to 16 more.
///
/// # Safety
/// `offset` bytes before `to` must be readable, and `len + 16` bytes from `to` on writable.
#[inline(always)]
unsafe fn repeat(to: *mut u8, offset: usize, len: usize) {
    // Makes 16 bytes of the pattern without going through memory.
    // SAFETY: the 16 bytes end before `to + 16`.
    let mut pattern = u128::from_le(unsafe { to.sub(offset).cast::<u128>().read_unaligned() });
    pattern &= (1 << (8 * offset)) - 1;
    let mut period = offset;
    while period < 16 {
        pattern |= pattern << (8 * period);
        period *= 2;
    }
    for done in (0..len).step_by(16 / offset * offset) {
        // SAFETY: `done < len`.
        unsafe { to.add(done).cast::<u128>().write_unaligned(pattern.to_le()) };
    }
}
