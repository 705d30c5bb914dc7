//! Limits on a process's memory (RLIMIT_AS, RLIMIT_DATA) that leave room for the agent.
//!
//! The kernel counts the agent's memory with the program's. So its limit is the program's plus a
//! *room*: for address space the arena's reservation, for data a little, as the arena does not
//! count there. The ten lowest bits of the sum mark it and encode the room's size. The kernel
//! counts pages and ignores these bits. Programs that the process starts inherit them with the
//! limit.

/// No limit.
pub const NONE: u64 = u64::MAX;

/// The smallest room, used for data limits. In a larger one the arena has all but this, which holds
/// the agent's other mappings.
pub const UNIT: u64 = 16 << 20;

/// The room in address space if it is unlimited.
const LARGEST: u64 = UNIT << 14;
/// The least room in address space for an agent.
const LEAST: u64 = UNIT << 2;
/// Larger limits count as unlimited.
const LIMIT_MAX: u64 = 1 << 60;

const TAG_BITS: u64 = 0x3ff;
const SIZE_BITS: u64 = 0xf;
/// The upper six of the ten bits.
const TAG: u64 = 0b10_1101 << 4;

/// The kernel's limit for a program's `limit` and a room, [`UNIT`] times a power of two up to 2^15.
pub fn with_room(limit: u64, room: u64) -> u64 {
    if limit >= LIMIT_MAX {
        return limit;
    }
    ((limit & !TAG_BITS) + room) | TAG | (u64::from((room / UNIT).trailing_zeros()) & SIZE_BITS)
}

/// The room in a kernel limit, `None` if it has none.
pub fn room_in(limit: u64) -> Option<u64> {
    let room = UNIT << (limit & SIZE_BITS);
    (limit & TAG_BITS & !SIZE_BITS == TAG && (room..LIMIT_MAX * 2).contains(&limit)).then_some(room)
}

/// The limit shown to the program for a kernel limit, rounded down to whole KiB.
pub fn shown(limit: u64) -> u64 {
    room_in(limit).map_or(limit, |room| (limit & !TAG_BITS) - room)
}

/// The room in address space under this kernel limit: at most a quarter of a limit without room.
pub fn room_under(limit: u64) -> u64 {
    if limit >= LIMIT_MAX * 2 {
        return LARGEST;
    }
    let quarter = UNIT << (limit / 4 / UNIT).max(1).ilog2().min(14);
    room_in(limit).unwrap_or(quarter).max(LEAST)
}

/// Bytes of the arena in a room in address space.
pub fn arena_bytes(room: u64) -> usize {
    (room - UNIT) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_comes_back_in_whole_kilobytes() {
        for limit in [0, 1024, 400 << 20, (400 << 20) + 1023, 1 << 40, LIMIT_MAX - 1] {
            for room in [UNIT, LEAST, LARGEST, UNIT << 15] {
                let given = with_room(limit, room);
                assert_eq!((shown(given), room_in(given)), (limit & !1023, Some(room)), "{limit} {room}");
                assert!(given >= limit && given / 4096 == (limit / 1024 * 1024 + room) / 4096);
                assert_eq!(room_under(given), room.max(LEAST));
            }
        }
    }

    #[test]
    fn limits_without_room_are_left_alone() {
        for limit in [NONE, NONE - 1, 0, 4096, 400 << 20, TAG, 1 << 62] {
            assert_eq!((shown(limit), room_in(limit)), (limit, None));
        }
        assert_eq!((with_room(NONE, UNIT), room_under(NONE)), (NONE, LARGEST));
        assert_eq!([4 << 30, 400 << 20, 0, 1 << 50].map(room_under), [1 << 30, LEAST, LEAST, LARGEST]);
        assert_eq!(arena_bytes(LARGEST), (256 << 30) - (16 << 20));
    }
}
