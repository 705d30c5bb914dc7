//! Where memory goes that is brought into a running program: away from the program's own.
//!
//! The kernel puts a new mapping beside the last one, often into the gap that the program has just
//! left by munmap(2). A program may map such a gap again (MAP_FIXED), and would replace what lies
//! there. So a larger range is reserved, and its upper part given back.

/// Distances to what lies above: the wanted one, and the one where RLIMIT_AS forbids it. Where that
/// forbids both, there is none.
const FAR: usize = 4 << 30;
const NEAR: usize = 64 << 20;

/// Reserves `len` bytes: `reserve` maps inaccessible memory of a length at an address of the
/// kernel's choice, `release` unmaps the range of an address and a length. Returns what `reserve`
/// answered last.
pub fn reserve<E>(
    len: usize,
    mut reserve: impl FnMut(usize) -> Result<usize, E>,
    mut release: impl FnMut(usize, usize),
) -> Result<usize, E> {
    let mut at_distance = |distance| reserve(len + distance).map(|at| (at, distance));
    let (at, distance) = at_distance(FAR).or_else(|_| at_distance(NEAR)).or_else(|_| at_distance(0))?;
    if distance > 0 {
        release(at + len, distance);
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_part_of_the_largest_range_stays() {
        for (room, distance) in [(8usize << 30, FAR), (1 << 30, NEAR), (1 << 20, 0)] {
            let mut released = vec![];
            let below = |len| (len <= room).then(|| 2 * room - len).ok_or(());
            let at = reserve(4096, below, |at, len| released.push((at, len))).unwrap();
            assert_eq!(at + 4096 + distance, 2 * room);
            let expected = if distance > 0 { vec![(at + 4096, distance)] } else { vec![] };
            assert_eq!(released, expected);
        }
        assert_eq!(reserve(4096, |_| Err(12), |_, _| ()), Err(12));
    }
}
