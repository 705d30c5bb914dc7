//! Pages that are nearly all zero: the other words, shortened, and their places.
//!
//! Layout:
//!
//! | size | content |
//! |---|---|
//! | 1 | number of places `n` |
//! | n | places: zero words to skip before the next word; 255 skips 255 and brings no word |
//! | (w + 1) / 2 | for each of the `w` words, low nibble first: its length in bytes - 1 |
//! | rest | the words' low bytes, little-endian |

use crate::t16::{page_words, word};
use crate::PAGE_SIZE;

/// Most nonzero words; beyond this T16 does better.
pub const WORDS_MAX: usize = 64;
/// No object is longer.
pub const OBJECT_MAX: usize = 1 + (WORDS_MAX + 2) + WORDS_MAX / 2 + 8 * WORDS_MAX;

/// A sparse object that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged sparse object")]
pub struct Damaged;

/// Encodes `page` into `out`. Returns `None` if more than [`WORDS_MAX`] words differ from zero or
/// `out` is too short.
pub fn encode(page: &[u8; PAGE_SIZE], out: &mut [u8]) -> Option<usize> {
    let words = page_words(page);
    let mut places = [0u8; WORDS_MAX + 2];
    let mut lens = [0u8; WORDS_MAX];
    let mut bytes = [0u8; 8 * WORDS_MAX + 8];
    let (mut count, mut places_len, mut bytes_len, mut expected) = (0, 0, 0, 0);
    for (group, eight) in words.as_chunks::<8>().0.iter().enumerate() {
        let mut set = 0u32;
        for (k, word) in eight.iter().enumerate() {
            set |= u32::from(u64::from_le_bytes(*word) != 0) << k;
        }
        if count + set.count_ones() as usize > WORDS_MAX {
            return None;
        }
        while set != 0 {
            let at = 8 * group + set.trailing_zeros() as usize;
            set &= set - 1;
            let mut gap = at - expected;
            while gap >= 255 {
                places[places_len] = 255;
                places_len += 1;
                gap -= 255;
            }
            places[places_len] = gap as u8;
            places_len += 1;
            expected = at + 1;
            let word = word(words, at);
            let len = 8 - word.leading_zeros() as usize / 8;
            lens[count] = len as u8 - 1;
            bytes[bytes_len..bytes_len + 8].copy_from_slice(&word.to_le_bytes());
            bytes_len += len;
            count += 1;
        }
    }
    let total = 1 + places_len + count.div_ceil(2) + bytes_len;
    let out = out.get_mut(..total)?;
    out[0] = places_len as u8;
    out[1..1 + places_len].copy_from_slice(&places[..places_len]);
    let (nibbles, rest) = out[1 + places_len..].split_at_mut(count.div_ceil(2));
    for (nibble, pair) in nibbles.iter_mut().zip(lens.as_chunks::<2>().0) {
        *nibble = pair[0] | pair[1] << 4;
    }
    rest.copy_from_slice(&bytes[..bytes_len]);
    Some(total)
}

/// Decodes `object` into `page`. Any bytes yield an error or some page.
///
/// # Errors
/// [`Damaged`] if the object contradicts itself.
pub fn decode(object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Damaged> {
    let (&places_len, rest) = object.split_first().ok_or(Damaged)?;
    let (places, rest) = rest.split_at_checked(places_len as usize).ok_or(Damaged)?;
    let count = places.iter().filter(|&&place| place != 255).count();
    let (nibbles, mut bytes) = rest.split_at_checked(count.div_ceil(2)).ok_or(Damaged)?;
    page.fill(0);
    let words = page.as_chunks_mut::<8>().0;
    let (mut at, mut number) = (0, 0);
    for &place in places {
        at += place as usize;
        if place == 255 {
            continue;
        }
        let len = (nibbles[number / 2] >> (4 * (number % 2)) & 15) as usize + 1;
        let word = words.get_mut(at).ok_or(Damaged)?;
        if len > 8 || len > bytes.len() {
            return Err(Damaged);
        }
        let value;
        (value, bytes) = bytes.split_at(len);
        word[..len].copy_from_slice(value);
        at += 1;
        number += 1;
    }
    if bytes.is_empty() {
        Ok(())
    } else {
        Err(Damaged)
    }
}
