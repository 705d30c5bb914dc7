//! Sets of eight as bytes, which replace the vector compress instructions that most machines lack.

/// For each set of eight: its members in ascending order.
pub(crate) static MEMBERS: [[u16; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut set = 0;
    while set < 256 {
        let (mut k, mut count) = (0, 0);
        while k < 8 {
            if set >> k & 1 == 1 {
                table[set][count] = k;
                count += 1;
            }
            k += 1;
        }
        set += 1;
    }
    table
};
