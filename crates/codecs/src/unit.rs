//! Units of several pages, as the page codecs store them: the lengths of all pages, each in two
//! bytes, little-endian; then the pages' objects. A page of full length is stored as it is.

use acomp::{Page, UnitError, PAGE_SIZE};

/// Bytes of a page's length.
pub(crate) const LEN: usize = 2;

/// Rebuilds a unit, whose every page `decode` rebuilds from its object. An object that is longer
/// than its pages is damaged.
pub(crate) fn decompress_pages(
    object: &[u8],
    pages: &mut [Page],
    mut decode: impl FnMut(&[u8], &mut Page) -> Result<(), UnitError>,
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
