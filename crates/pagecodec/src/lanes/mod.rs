//! Registers made of lanes of 16 bytes: the instructions common to SSE4, AVX2 and NEON.
//!
//! Code over [`Lanes`] runs with all three. It treats lanes alike and never moves a byte between
//! them, which is slow with AVX2: callers that want consecutive data in order load and store lanes
//! from separate places. It uses no gathers or bit deposits, which are microcode on Zen 1 and 2.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Xmm, Ymm};

/// A register of [`Lanes::COUNT`] lanes of 16 bytes.
///
/// Values come from `load`, `splat` and other unsafe constructors, whose callers vouch for the
/// machine's instructions; so the other functions are safe. All must be inlined into a function
/// compiled for these instructions.
pub(crate) trait Lanes: Copy {
    /// A register of one lane.
    type Lane: Lanes<Lane = Self::Lane>;
    const COUNT: usize;
    const BYTES: usize = 16 * Self::COUNT;

    /// `byte` everywhere. The machine must have the instructions.
    unsafe fn splat(byte: u8) -> Self;

    /// Loads lane `i` from `at + i * apart`. The machine must have the instructions, and 16 bytes
    /// must be readable for each lane.
    unsafe fn load(at: *const u8, apart: usize) -> Self;

    /// Stores lane `i` to `at + i * apart`. 16 bytes must be writable for each lane.
    unsafe fn store(self, at: *mut u8, apart: usize);

    /// Joins the lanes that `make` returns, called in order.
    fn join(make: impl FnMut(usize) -> Self::Lane) -> Self;

    fn lane(self, number: usize) -> Self::Lane;

    /// Loads four-bit tags from `8 * COUNT` bytes, two a byte, low one first, into a byte each. The
    /// machine must have the instructions, and the bytes must be readable.
    unsafe fn load_nibbles(at: *const u8) -> Self;

    /// Reverses [`Lanes::load_nibbles`] for bytes below 16. `8 * COUNT` bytes must be writable.
    unsafe fn store_nibbles(self, at: *mut u8);

    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// The bits of this that `mask` lacks.
    fn without(self, mask: Self) -> Self;
    /// Sums of bytes, modulo 256.
    fn add(self, other: Self) -> Self;
    /// All ones in equal bytes.
    fn same(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// `word` in all 16-bit words. The machine must have the instructions.
    unsafe fn splat16(word: i16) -> Self;
    /// Differences of 16-bit words, modulo 65536.
    fn sub16(self, other: Self) -> Self;
    /// All ones in the 16-bit words that are less, as signed numbers.
    fn less16(self, other: Self) -> Self;
    /// This where `mask` is all ones, `other` where it is zero.
    fn choose(self, mask: Self, other: Self) -> Self;
    /// The upper four bits of each byte as its lower four.
    fn high_nibbles(self) -> Self;
    /// The bytes of this lane at the indices `places`, which are below 16; zero for 0x80.
    fn shuffle(self, places: Self) -> Self;
    /// Bit `BIT` of every byte.
    fn bits<const BIT: i32>(self) -> u32;
    /// Interleaves the bytes (16-, 32-bit words) of the lower halves, and of the upper halves.
    fn zip8(self, other: Self) -> (Self, Self);
    fn zip16(self, other: Self) -> (Self, Self);
    fn zip32(self, other: Self) -> (Self, Self);

    /// Returns the bytes `(word >> shift) * multiplier >> 44` of the 16 64-bit words of two lines.
    /// `multiplier` has 52 bits. The machine must have the instructions, and 64 bytes must be
    /// readable at each place.
    #[inline(always)]
    unsafe fn hash<const SHIFT: i32>(lines: [*const u8; 2], multiplier: u64) -> Self::Lane {
        let mut bytes = [0u8; 16];
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let word = unsafe { lines[at / 8].cast::<u64>().add(at % 8).read_unaligned() };
            *byte = ((u64::from_le(word) >> SHIFT).wrapping_mul(multiplier) >> 44) as u8;
        }
        // SAFETY: 16 bytes.
        unsafe { Self::Lane::load(bytes.as_ptr(), 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every implementation with plain loops over these bytes.
    #[inline(always)]
    unsafe fn check<L: Lanes>() {
        let mut state = 7u64;
        let mut random = move || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 56) as u8
        };
        for _ in 0..200 {
            let a: [u8; 128] = std::array::from_fn(|_| random());
            let b: [u8; 128] = std::array::from_fn(|at| if random() < 80 { a[at] } else { random() });
            let m: [u8; 128] = std::array::from_fn(|_| if random() < 128 { 0 } else { 0xff });
            let i: [u8; 128] = std::array::from_fn(|_| if random() < 64 { 0x80 } else { random() % 16 });
            // SAFETY: two lanes of these bytes at most; the caller vouches for the machine.
            unsafe {
                let (ra, rb) = (L::load(a.as_ptr(), 32), L::load(b.as_ptr(), 32));
                let (rm, ri) = (L::load(m.as_ptr(), 32), L::load(i.as_ptr(), 32));
                let at = |n: usize| n / 16 * 32 + n % 16;
                let expect = |name: &str, got: L, of: &dyn Fn(usize) -> u8| {
                    let mut bytes = [0u8; 64];
                    got.store(bytes.as_mut_ptr(), 16);
                    for (n, &byte) in bytes.iter().enumerate().take(L::BYTES) {
                        assert_eq!(byte, of(n), "{name} {n}");
                    }
                };
                expect("and", ra.and(rb), &|n| a[at(n)] & b[at(n)]);
                expect("or", ra.or(rb), &|n| a[at(n)] | b[at(n)]);
                expect("xor", ra.xor(rb), &|n| a[at(n)] ^ b[at(n)]);
                expect("without", ra.without(rb), &|n| a[at(n)] & !b[at(n)]);
                expect("add", ra.add(rb), &|n| a[at(n)].wrapping_add(b[at(n)]));
                expect("same", ra.same(rb), &|n| if a[at(n)] == b[at(n)] { 0xff } else { 0 });
                expect("max", ra.max(rb), &|n| a[at(n)].max(b[at(n)]));
                expect("choose", ra.choose(rm, rb), &|n| if m[at(n)] != 0 { a[at(n)] } else { b[at(n)] });
                let word =
                    |of: &[u8; 128], n: usize| i16::from_le_bytes([of[at(n / 2 * 2)], of[at(n / 2 * 2 + 1)]]);
                let differences = |n: usize| word(&a, n).wrapping_sub(word(&b, n)).to_le_bytes()[n % 2];
                expect("sub16", ra.sub16(rb), &differences);
                expect("less16", ra.less16(rb), &|n| if word(&a, n) < word(&b, n) { 0xff } else { 0 });
                let first = i16::from_le_bytes([a[0], a[1]]);
                expect("splat16", L::splat16(first), &|n| a[n % 2]);
                expect("high_nibbles", ra.high_nibbles(), &|n| a[at(n)] >> 4);
                expect("splat", L::splat(a[0]), &|_| a[0]);
                let shuffled = |n: usize| {
                    let place = usize::from(i[at(n)]);
                    if place < 16 {
                        a[at(n / 16 * 16 + place)]
                    } else {
                        0
                    }
                };
                expect("shuffle", ra.shuffle(ri), &shuffled);
                let zipped = |n: usize, size: usize, upper: usize| {
                    let (unit, byte) = (n % 16 / size, n % size);
                    let from = at(n / 16 * 16 + 8 * upper + unit / 2 * size + byte);
                    if unit % 2 == 0 {
                        a[from]
                    } else {
                        b[from]
                    }
                };
                for (size, (low, high)) in [(1, ra.zip8(rb)), (2, ra.zip16(rb)), (4, ra.zip32(rb))] {
                    expect("zip low", low, &|n| zipped(n, size, 0));
                    expect("zip high", high, &|n| zipped(n, size, 1));
                }
                for n in 0..L::BYTES {
                    assert_eq!(ra.bits::<7>() >> n & 1, u32::from(a[at(n)] >> 7), "bit 7 of {n}");
                    assert_eq!(ra.bits::<4>() >> n & 1, u32::from(a[at(n)] >> 4 & 1), "bit 4 of {n}");
                }
                let tags = L::load_nibbles(a.as_ptr());
                expect("load_nibbles", tags, &|n| a[n / 2] >> (4 * (n % 2)) & 15);
                let mut back = [0u8; 64];
                tags.store_nibbles(back.as_mut_ptr());
                assert_eq!(back[..L::BYTES / 2], a[..L::BYTES / 2]);
                assert!(back[L::BYTES / 2..].iter().all(|&byte| byte == 0));
                let joined = L::join(|number| rb.lane(L::COUNT - 1 - number));
                expect("join", joined, &|n| b[at((L::COUNT - 1 - n / 16) * 16 + n % 16)]);
                let word =
                    |n: usize| u64::from_le_bytes(a[8 * n..8 * n + 8].try_into().expect("eight bytes"));
                let multiplier = 0x9_E377_9B97_F4A7u64;
                let lines = [a.as_ptr().add(64), a.as_ptr()];
                let mut hashes = [[0u8; 16]; 2];
                L::hash::<0>(lines, multiplier).store(hashes[0].as_mut_ptr(), 0);
                L::hash::<16>(lines, multiplier).store(hashes[1].as_mut_ptr(), 0);
                for (n, (&plain, &shifted)) in hashes[0].iter().zip(&hashes[1]).enumerate() {
                    let word = word((n + 8) % 16);
                    assert_eq!(plain, (word.wrapping_mul(multiplier) >> 44) as u8);
                    assert_eq!(shifted, ((word >> 16).wrapping_mul(multiplier) >> 44) as u8);
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn x86_lanes_equal_plain_loops() {
        #[target_feature(enable = "ssse3,sse4.1,popcnt")]
        fn sse4() {
            // SAFETY: this function has the features.
            unsafe { check::<Xmm>() }
        }
        #[target_feature(enable = "avx2")]
        fn avx2() {
            // SAFETY: this function has the features.
            unsafe { check::<Ymm>() }
        }
        if crate::Isa::Sse4.is_available() {
            // SAFETY: the machine has SSE4.1.
            unsafe { sse4() }
        } else {
            testkit::skip!("cpu", "no SSE4.1");
        }
        if crate::Isa::Avx2.is_available() {
            // SAFETY: the machine has AVX2.
            unsafe { avx2() }
        } else {
            testkit::skip!("cpu", "no AVX2");
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn neon_lanes_equal_plain_loops() {
        // SAFETY: every aarch64 machine that Rust supports has NEON.
        unsafe { check::<Neon>() }
    }
}
