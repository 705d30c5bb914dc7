//! Requests of the page codecs. A unit of several pages is stored as the pages' lengths, each two
//! bytes, little-endian, followed by the pages' objects. A page of full length is stored raw.

use acomp::{CompressRequest, DecompressRequest, Object, Page, UnitError, UnitResult, PAGE_SIZE};
use pagecodec::t16;

const LEN: usize = 2;

fn byte(object: Object<'_>, at: usize) -> Option<u8> {
    object.head.get(at).or_else(|| object.tail.get(at.wrapping_sub(object.head.len()))).copied()
}

/// Returns the first `N` bytes of each page's object within a unit of `pages` pages, or `None` for
/// a raw page or beyond the end. A unit of one page is the page's object.
pub(crate) fn heads<const N: usize>(
    object: Object<'_>,
    pages: usize,
) -> impl Iterator<Item = Option<[u8; N]>> + '_ {
    let word = move |at: usize| {
        let mut word = [0; N];
        word.iter_mut()
            .enumerate()
            .try_for_each(|(nth, to)| byte(object, at + nth).map(|byte| *to = byte))?;
        Some(word)
    };
    let mut at = if pages == 1 { 0 } else { LEN * pages };
    (0..pages).map(move |number| {
        let head = word(at);
        if pages == 1 {
            return head;
        }
        let low_high = [byte(object, LEN * number)?, byte(object, LEN * number + 1)?];
        let len = usize::from(u16::from_le_bytes(low_high));
        at += len;
        head.filter(|_| len < PAGE_SIZE)
    })
}

/// Compresses the units of `request`. `encode` makes the object of a page and prefetches the one
/// after it. `forget` gets the pages of a unit that did not fit.
pub(crate) fn compress(
    request: &mut CompressRequest<'_, '_>,
    mut encode: impl FnMut(&Page, &Page, &mut [u8]) -> UnitResult,
    forget: impl Fn(Object<'_>, usize),
) {
    request.assert_valid();
    let pages_per_unit = request.unit_size / PAGE_SIZE;
    let outputs = request.outputs.iter_mut().zip(request.results.iter_mut());
    for (number, (output, result)) in outputs.enumerate() {
        let first = number * pages_per_unit;
        *result = match &request.pages[first..request.pages.len().min(first + pages_per_unit)] {
            [page] => encode(page, request.pages.get(first + 1).unwrap_or(page), output),
            pages => compress_pages(pages, output, &mut encode, &forget),
        };
    }
}

fn compress_pages(
    pages: &[&Page],
    output: &mut [u8],
    encode: &mut impl FnMut(&Page, &Page, &mut [u8]) -> UnitResult,
    forget: &impl Fn(Object<'_>, usize),
) -> UnitResult {
    let mut at = LEN * pages.len();
    for (number, page) in pages.iter().enumerate() {
        let room = output.get_mut(at..).unwrap_or_default();
        let room_len = room.len().min(PAGE_SIZE - 1);
        let next = pages.get(number + 1).unwrap_or(page);
        let len = match encode(page, next, &mut room[..room_len]) {
            Ok(len) => len,
            Err(_) => match room.get_mut(..PAGE_SIZE) {
                Some(room) => {
                    room.copy_from_slice(*page);
                    PAGE_SIZE
                }
                None => {
                    // The whole unit is dropped.
                    if at <= output.len() {
                        output[LEN * number..LEN * pages.len()].fill(0);
                        forget(Object::whole(&output[..at]), pages.len());
                    }
                    return Err(UnitError::NoSpace);
                }
            },
        };
        output[LEN * number..LEN * (number + 1)].copy_from_slice(&(len as u16).to_le_bytes());
        at += len;
    }
    Ok(at)
}

/// Decompresses the objects of `request`, joining their pieces in `bounce`. `decode` rebuilds a
/// page. Each object is prefetched while the one before is decoded.
pub(crate) fn decompress(
    request: &mut DecompressRequest<'_, '_>,
    bounce: &mut [u8],
    mut decode: impl FnMut(&[u8], &mut Page) -> Result<(), UnitError>,
) {
    request.assert_valid();
    for (at, (output, result)) in request.outputs.iter_mut().zip(request.results.iter_mut()).enumerate() {
        if let Some(next) = request.objects.get(at + 1) {
            t16::prefetch(next.head);
            t16::prefetch(next.tail);
        }
        let object = &request.objects[at];
        if object.len() > bounce.len() {
            *result = Err(UnitError::Failed);
            continue;
        }
        let bytes = object.linear(bounce);
        *result = match output.as_chunks_mut::<PAGE_SIZE>() {
            ([page], []) => decode(bytes, page),
            (pages, []) => decompress_pages(bytes, pages, &mut decode),
            _ => Err(UnitError::Failed),
        }
        .map(|()| output.len());
    }
}

/// Rebuilds the pages of a unit. An object longer than its pages is damaged.
fn decompress_pages(
    object: &[u8],
    pages: &mut [Page],
    decode: &mut impl FnMut(&[u8], &mut Page) -> Result<(), UnitError>,
) -> Result<(), UnitError> {
    let (lens, mut rest) = object.split_at_checked(LEN * pages.len()).ok_or(UnitError::Failed)?;
    for (page, len) in pages.iter_mut().zip(lens.as_chunks::<LEN>().0) {
        let len = usize::from(u16::from_le_bytes(*len));
        let bytes;
        (bytes, rest) = rest.split_at_checked(len).ok_or(UnitError::Failed)?;
        if len == PAGE_SIZE {
            page.copy_from_slice(bytes);
        } else {
            decode(bytes, page)?;
        }
    }
    rest.is_empty().then_some(()).ok_or(UnitError::Failed)
}
