//! The three loops over rows: sampling, packing, unpacking. Generic over the element; every step is
//! one vector.

use super::{Damaged, Element, Shape, GROUP, GROUPS, ROW, ROWS};
use crate::PAGE_SIZE;

#[inline(always)]
pub(super) fn rows(page: &[u8; PAGE_SIZE]) -> &[[u8; ROW]; ROWS] {
    page.as_chunks::<ROW>().0.try_into().expect("64 rows of 64 bytes are a page")
}

/// Returns the bits per element in the sampled rows: of values, and of differences.
#[inline(always)]
pub(crate) fn sample<E: Element>(page: &[u8; PAGE_SIZE]) -> [u32; 2] {
    let rows = rows(page);
    let first = E::load(&rows[0]);
    let first_step = E::sub(&E::load(&rows[1]), &first);
    let (mut least, mut greatest, mut any) = (first, first, E::zero_row());
    let (mut least_step, mut greatest_step, mut any_step) = (first_step, first_step, E::zero_row());
    // Pairs of rows, for the differences, spread over the page.
    for at in (0..ROWS - 1).step_by(18) {
        let (a, b) = (E::load(&rows[at]), E::load(&rows[at + 1]));
        let step = E::sub(&b, &a);
        least = E::min(&E::min(&least, &a), &b);
        greatest = E::max(&E::max(&greatest, &a), &b);
        any = E::or(&any, &E::or(&E::sub(&a, &first), &E::sub(&b, &first)));
        least_step = E::min(&least_step, &step);
        greatest_step = E::max(&greatest_step, &step);
        any_step = E::or(&any_step, &E::sub(&step, &first_step));
    }
    let bits = |least: &E::Row, greatest: &E::Row, any: &E::Row, first: &E::Row| {
        let least = E::least(least);
        let width = E::greatest(greatest).wrapping_sub(least).width();
        // Residues relative to a column's first value have the same common zeros as those relative
        // to the least value, once the columns' first values are compared too.
        let any = E::any(&E::or(any, &E::sub(first, &E::splat(least))));
        width.saturating_sub(any.trailing().min(E::BITS - 1))
    };
    [bits(&least, &greatest, &any, &first), bits(&least_step, &greatest_step, &any_step, &first_step)]
}

/// Whether a page of bytes cannot be expected to save a bit of each: both values and differences
/// have members with the upper bits 01 and with 10, so that they are 128 apart. Costs less than one
/// [`sample`].
#[inline(always)]
pub(crate) fn hopeless_bytes(page: &[u8; PAGE_SIZE]) -> bool {
    type Row = [u8; ROW];
    let rows = rows(page);
    let upper = |row: &Row, [high, low]: [Row; 2]| -> [Row; 2] {
        [
            std::array::from_fn(|at| high[at] | (!row[at] & row[at] << 1)),
            std::array::from_fn(|at| low[at] | (row[at] & !(row[at] << 1))),
        ]
    };
    let (mut values, mut steps) = ([[0; ROW]; 2], [[0; ROW]; 2]);
    for at in (0..ROWS - 1).step_by(18) {
        let (a, b) = (&rows[at], &rows[at + 1]);
        values = upper(b, upper(a, values));
        steps = upper(&u8::sub(b, a), steps);
    }
    values.iter().chain(&steps).all(|row| u8::any(row) & 0x80 != 0)
}

#[inline(always)]
pub(crate) fn encode<E: Element>(page: &[u8; PAGE_SIZE], shape: Shape, out: &mut [u8]) -> Option<usize> {
    let rows = rows(page);
    let value = |at: usize| {
        let row = E::load(&rows[at]);
        if shape.differences {
            E::sub(&row, &E::load(&rows[at - 1]))
        } else {
            row
        }
    };
    let start = usize::from(shape.differences);
    let least = (start + 1..ROWS).fold(value(start), |least, at| E::min(&least, &value(at)));
    let base = E::least(&least);
    let base_row = E::splat(base);

    let mut any = [E::zero_row(); GROUPS];
    for (group, any) in any.iter_mut().enumerate() {
        for at in (GROUP * group).max(start)..GROUP * (group + 1) {
            *any = E::or(any, &E::sub(&value(at), &base_row));
        }
    }
    let any = any.map(|row| E::any(&row));
    let shift = any.iter().map(|any| any.trailing()).min().unwrap_or(0).min(E::BITS - 1);
    let widths = any.map(|any| any.width().saturating_sub(shift));
    let bits: u32 = widths.iter().sum();
    let len = shape.object_len(bits as usize);

    let out = out.get_mut(..len)?;
    out[0] = shape.code();
    out[1] = shift as u8;
    base.put_bytes(&mut out[2..]);
    let fixed = shape.fixed_len();
    if shape.differences {
        out[fixed - ROW..fixed].copy_from_slice(&rows[0]);
    }
    for (out, width) in out[fixed..].iter_mut().zip(widths) {
        *out = width as u8;
    }
    let mut units = out[fixed + GROUPS..].as_chunks_mut::<ROW>().0.iter_mut();
    let (mut unit, mut filled) = (E::zero_row(), 0);
    for (group, width) in widths.into_iter().enumerate() {
        if width == 0 {
            continue;
        }
        for at in GROUP * group..GROUP * (group + 1) {
            let residue =
                if at < start { E::zero_row() } else { E::right(&E::sub(&value(at), &base_row), shift) };
            unit = E::or(&unit, &E::left(&residue, filled));
            filled += width;
            if filled >= E::BITS {
                E::store(&unit, units.next().expect("the widths' sum counts the units"));
                filled -= E::BITS;
                unit = if filled == 0 { E::zero_row() } else { E::right(&residue, width - filled) };
            }
        }
    }
    if filled > 0 {
        E::store(&unit, units.next().expect("the widths' sum counts the units"));
    }
    Some(len)
}

#[inline(always)]
pub(crate) fn decode<E: Element>(
    object: &[u8],
    shape: Shape,
    page: &mut [u8; PAGE_SIZE],
) -> Result<(), Damaged> {
    let fixed = shape.fixed_len();
    let (header, units) = object.split_at_checked(fixed + GROUPS).ok_or(Damaged)?;
    let widths = header[fixed..].first_chunk::<GROUPS>().expect("the header ends with the widths");
    let bits: usize = widths.iter().map(|&width| usize::from(width)).sum();
    let shift = u32::from(header[1]);
    if widths.iter().any(|&width| u32::from(width) > E::BITS)
        || shift >= E::BITS
        || object.len() != shape.object_len(bits)
    {
        return Err(Damaged);
    }
    let base = E::splat(E::from_bytes(&header[2..]));
    let mut previous = E::zero_row();
    if shape.differences {
        // The first row's residue decodes to the base. Subtracted here, it is added again with it.
        let first = header[fixed - ROW..fixed].first_chunk().expect("a row");
        previous = E::sub(&E::load(first), &base);
    }
    let mut units = units.as_chunks::<ROW>().0.iter();
    let (mut unit, mut left) = (E::zero_row(), 0);
    let rows = page.as_chunks_mut::<ROW>().0;
    for (&width, rows) in widths.iter().zip(rows.as_chunks_mut::<GROUP>().0) {
        let width = u32::from(width);
        let mask = E::splat(E::mask(width));
        for row in rows {
            // The low end of `unit` holds the `left` bits not yet taken.
            let mut residue = E::and(&unit, &mask);
            if left >= width {
                if width < E::BITS {
                    unit = E::right(&unit, width);
                }
                left -= width;
            } else {
                let next = E::load(units.next().ok_or(Damaged)?);
                residue = E::and(&E::or(&unit, &E::left(&next, left)), &mask);
                let taken = width - left;
                left = E::BITS - taken;
                unit = if left == 0 { E::zero_row() } else { E::right(&next, taken) };
            }
            let value = E::add(&E::left(&residue, shift), &base);
            let value = if shape.differences {
                previous = E::add(&previous, &value);
                previous
            } else {
                value
            };
            E::store(&value, row);
        }
    }
    Ok(())
}
