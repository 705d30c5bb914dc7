//! Where memory goes that is brought into a running program: away from the program's own.
//!
//! The kernel puts a new mapping beside the last one, often into the gap that the program has just
//! left by munmap(2). A program may map such a gap again (MAP_FIXED), and would replace what lies
//! there. So a larger range is reserved, and its upper part given back.

/// Distances to what lies above, in order of preference: RLIMIT_AS may forbid the larger ones.
const DISTANCES: [usize; 3] = [4 << 30, 64 << 20, 0];

/// Reserves `len` bytes: `reserve` maps inaccessible memory of a length at an address of the
/// kernel's choice, `release` unmaps the range of an address and a length. Returns what `reserve`
/// answered last.
pub fn reserve<E>(
    len: usize,
    mut reserve: impl FnMut(usize) -> Result<usize, E>,
    mut release: impl FnMut(usize, usize),
) -> Result<usize, E> {
    let [far, near, none] = DISTANCES.map(|distance| (distance, len + distance));
    let (distance, at) = match reserve(far.1) {
        Ok(at) => (far.0, at),
        Err(_) => match reserve(near.1) {
            Ok(at) => (near.0, at),
            Err(_) => (none.0, reserve(none.1)?),
        },
    };
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
        for (room, distance) in [(8usize << 30, DISTANCES[0]), (1 << 30, DISTANCES[1]), (1 << 20, 0)] {
            let (mut asked, mut released) = (vec![], vec![]);
            let at = reserve(
                4096,
                |len| {
                    asked.push(len);
                    if len <= room {
                        Ok(room * 2 - len)
                    } else {
                        Err(())
                    }
                },
                |at, len| released.push((at, len)),
            );
            let at = at.unwrap();
            assert_eq!(at + 4096 + distance, room * 2, "{asked:?}");
            let expected = if distance > 0 { vec![(at + 4096, distance)] } else { vec![] };
            assert_eq!(released, expected);
        }
        assert_eq!(reserve(4096, |_| Err(12), |_, _| ()), Err(12));
    }
}
