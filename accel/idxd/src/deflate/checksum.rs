//! The checksums a device takes over plain data: CRC-32 as gzip has it, CRC-32C, and an XOR of
//! 16-bit words.

/// Polynomials, reflected.
const IEEE: u32 = 0xedb8_8320;
const CASTAGNOLI: u32 = 0x82f6_3b78;

type Tables = [[u32; 256]; 8];

const fn tables(polynomial: u32) -> Tables {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { polynomial } else { 0 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut slice = 1;
    while slice < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[slice - 1][byte];
            tables[slice][byte] = before >> 8 ^ tables[0][(before & 255) as usize];
            byte += 1;
        }
        slice += 1;
    }
    tables
}

static TABLES_IEEE: Tables = tables(IEEE);
static TABLES_CASTAGNOLI: Tables = tables(CASTAGNOLI);

/// Eight bytes at a time from tables. `state` is the CRC without its final inversion.
fn sliced(tables: &Tables, mut state: u32, data: &[u8]) -> u32 {
    let mut words = data.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes")) ^ u64::from(state);
        state = 0;
        for (at, table) in tables.iter().rev().enumerate() {
            state ^= table[(word >> (8 * at)) as usize & 255];
        }
    }
    for &byte in words.remainder() {
        state = state >> 8 ^ tables[0][((state ^ u32::from(byte)) & 255) as usize];
    }
    state
}

/// CRC-32 of gzip, continued from `crc` (0 to begin).
pub fn crc32(crc: u32, data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if data.len() >= 512
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
    {
        let whole = data.len() & !63;
        // SAFETY: the CPU has the features, and `whole` is a multiple of 64 of at least 256.
        let state = unsafe { folded_wide(!crc, &data[..whole]) };
        return !sliced(&TABLES_IEEE, state, &data[whole..]);
    }
    #[cfg(target_arch = "x86_64")]
    if data.len() >= 128 && is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1") {
        let whole = data.len() & !15;
        // SAFETY: the CPU has the features, and `whole` is a multiple of 16 of at least 64.
        let state = unsafe { folded(!crc, &data[..whole]) };
        return !sliced(&TABLES_IEEE, state, &data[whole..]);
    }
    !sliced(&TABLES_IEEE, !crc, data)
}

/// CRC-32C (RFC 3720), continued from `crc` (0 to begin).
pub fn crc32c(crc: u32, data: &[u8]) -> u32 {
    !sliced(&TABLES_CASTAGNOLI, !crc, data)
}

/// CRC-32 by carry-less multiplication: four lanes of 128 bits folded forward by 512 bits each
/// step, then into one, then reduced. Method and constants: Gopal et al., "Fast CRC Computation for
/// Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009 (constants for the reflected IEEE
/// polynomial).
///
/// # Safety
/// The CPU has PCLMULQDQ and SSE4.1; the length is a multiple of 16 and at least 64.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq,sse4.1")]
unsafe fn folded(state: u32, data: &[u8]) -> u32 {
    use std::arch::x86_64::*;

    debug_assert!(data.len() >= 64 && data.len().is_multiple_of(16));
    let load = |block: &[u8]| {
        // SAFETY: every block handed in is 16 bytes long; the load needs no alignment.
        unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
    };
    let fold = |lane: __m128i, by: __m128i, next: __m128i| {
        let low = _mm_clmulepi64_si128(lane, by, 0x00);
        let high = _mm_clmulepi64_si128(lane, by, 0x11);
        _mm_xor_si128(_mm_xor_si128(low, high), next)
    };
    let by_512 = _mm_set_epi64x(0x1_c6e4_1596, 0x1_5444_2bd4);
    let by_128 = _mm_set_epi64x(0x0_ccaa_009e, 0x1_7519_97d0);

    let mut blocks = data.chunks_exact(16);
    let mut next = || blocks.next().map(load);
    let first = next().expect("64 bytes");
    let mut lanes = [_mm_xor_si128(first, _mm_cvtsi32_si128(state as i32)); 4];
    for lane in &mut lanes[1..] {
        *lane = next().expect("64 bytes");
    }
    let mut rest = data[64..].chunks_exact(64);
    for group in &mut rest {
        for (lane, block) in lanes.iter_mut().zip(group.chunks_exact(16)) {
            *lane = fold(*lane, by_512, load(block));
        }
    }
    let mut all = lanes[0];
    for lane in &lanes[1..] {
        all = fold(all, by_128, *lane);
    }
    for block in rest.remainder().chunks_exact(16) {
        all = fold(all, by_128, load(block));
    }

    // SAFETY: the features are those of this function.
    unsafe { reduced(all) }
}

/// As [`folded`], sixteen lanes at once: four registers of four, folded forward by 2048 bits each
/// step.
///
/// # Safety
/// The CPU has AVX-512F, VPCLMULQDQ, PCLMULQDQ and SSE4.1; the length is a multiple of 64 and at
/// least 256.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
unsafe fn folded_wide(state: u32, data: &[u8]) -> u32 {
    use std::arch::x86_64::*;

    debug_assert!(data.len() >= 256 && data.len().is_multiple_of(64));
    let load = |block: &[u8]| {
        // SAFETY: every block handed in is 64 bytes long; the load needs no alignment.
        unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
    };
    let fold = |lanes: __m512i, by: __m512i, next: __m512i| {
        let low = _mm512_clmulepi64_epi128(lanes, by, 0x00);
        let high = _mm512_clmulepi64_epi128(lanes, by, 0x11);
        // 0x96: the XOR of all three.
        _mm512_ternarylogic_epi64(low, high, next, 0x96)
    };
    let by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1_322d_1430, 0x1_1542_778a));
    let by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1_c6e4_1596, 0x1_5444_2bd4));
    let by_128 = _mm_set_epi64x(0x0_ccaa_009e, 0x1_7519_97d0);

    let (first, rest) = data.split_at(256);
    let mut lanes = [_mm512_setzero_si512(); 4];
    for (lanes, block) in lanes.iter_mut().zip(first.chunks_exact(64)) {
        *lanes = load(block);
    }
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32)));
    let mut groups = rest.chunks_exact(256);
    for group in &mut groups {
        for (lanes, block) in lanes.iter_mut().zip(group.chunks_exact(64)) {
            *lanes = fold(*lanes, by_2048, load(block));
        }
    }
    let mut all = lanes[0];
    for lanes in &lanes[1..] {
        all = fold(all, by_512, *lanes);
    }
    for block in groups.remainder().chunks_exact(64) {
        all = fold(all, by_512, load(block));
    }
    let fold = |lane: __m128i, next: __m128i| {
        let low = _mm_clmulepi64_si128(lane, by_128, 0x00);
        let high = _mm_clmulepi64_si128(lane, by_128, 0x11);
        _mm_xor_si128(_mm_xor_si128(low, high), next)
    };
    let mut one = _mm512_extracti32x4_epi32(all, 0);
    one = fold(one, _mm512_extracti32x4_epi32(all, 1));
    one = fold(one, _mm512_extracti32x4_epi32(all, 2));
    one = fold(one, _mm512_extracti32x4_epi32(all, 3));
    // SAFETY: the features are among those of this function.
    unsafe { reduced(one) }
}

/// The CRC state that 128 folded bits come to.
///
/// # Safety
/// The CPU has PCLMULQDQ and SSE4.1.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "pclmulqdq,sse4.1")]
unsafe fn reduced(all: std::arch::x86_64::__m128i) -> u32 {
    use std::arch::x86_64::*;

    let by_128 = _mm_set_epi64x(0x0_ccaa_009e, 0x1_7519_97d0);
    let by_64 = _mm_set_epi64x(0, 0x1_63cd_6124);
    let reduce = _mm_set_epi64x(0x1_f701_1641, 0x1_db71_0641);
    // 128 to 64 bits, then Barrett reduction to 32.
    let mask = _mm_set_epi32(0, 0, 0, -1);
    let mut part = _mm_xor_si128(_mm_srli_si128(all, 8), _mm_clmulepi64_si128(all, by_128, 0x10));
    part =
        _mm_xor_si128(_mm_srli_si128(part, 4), _mm_clmulepi64_si128(_mm_and_si128(part, mask), by_64, 0x00));
    let quotient = _mm_clmulepi64_si128(_mm_and_si128(part, mask), reduce, 0x10);
    let product = _mm_clmulepi64_si128(_mm_and_si128(quotient, mask), reduce, 0x00);
    _mm_extract_epi32(_mm_xor_si128(part, product), 1) as u32
}

/// XOR of the little-endian 16-bit words of `data`, an odd last byte into the low byte, continued
/// from `xor`.
pub fn xor16(xor: u16, data: &[u8]) -> u16 {
    let mut words = data.chunks_exact(8);
    let mut wide = 0u64;
    for word in &mut words {
        wide ^= u64::from_le_bytes(word.try_into().expect("eight bytes"));
    }
    let mut tail = [0; 8];
    tail[..words.remainder().len()].copy_from_slice(words.remainder());
    wide ^= u64::from_le_bytes(tail);
    wide ^= wide >> 32;
    xor ^ (wide ^ wide >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bitwise(polynomial: u32, data: &[u8]) -> u32 {
        let mut state = !0u32;
        for &byte in data {
            state ^= u32::from(byte);
            for _ in 0..8 {
                state = state >> 1 ^ if state & 1 != 0 { polynomial } else { 0 };
            }
        }
        !state
    }

    /// The check values of the CRC catalogues.
    #[test]
    fn check_values() {
        assert_eq!(crc32(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(xor16(0, &[0x01, 0x02, 0x04, 0x08, 0x10]), 0x0a15);
    }

    /// x^n modulo the polynomial, as the folding functions take it: reflected, shifted by one.
    #[test]
    fn folding_constants() {
        let power = |n: u32| {
            let step = |state: u32, _| state >> 1 ^ if state & 1 != 0 { IEEE } else { 0 };
            u64::from((0..n).fold(1 << 31, step)) << 1
        };
        assert_eq!((power(128 + 32), power(128 - 32)), (0x1_7519_97d0, 0x0_ccaa_009e));
        assert_eq!((power(512 + 32), power(512 - 32)), (0x1_5444_2bd4, 0x1_c6e4_1596));
        assert_eq!((power(2048 + 32), power(2048 - 32)), (0x1_1542_778a, 0x1_322d_1430));
    }

    /// Both ways of folding, whichever this processor would take.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_widths_agree() {
        let data: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("vpclmulqdq") {
            testkit::skip!("cpu", "no VPCLMULQDQ");
            return;
        }
        for len in (256..=4096).step_by(64) {
            // SAFETY: the features were asked for; those with VPCLMULQDQ have PCLMULQDQ and SSE4.1.
            let (narrow, wide) = unsafe { (folded(!7, &data[..len]), folded_wide(!7, &data[..len])) };
            assert_eq!(narrow, wide, "{len}");
        }
    }

    proptest! {
        #[test]
        fn every_length_and_split_agrees_with_the_definition(
            data in proptest::collection::vec(any::<u8>(), 0..1700), at in 0usize..1700
        ) {
            let at = at.min(data.len());
            prop_assert_eq!(crc32(0, &data), bitwise(IEEE, &data));
            prop_assert_eq!(crc32c(0, &data), bitwise(CASTAGNOLI, &data));
            prop_assert_eq!(crc32(crc32(0, &data[..at]), &data[at..]), crc32(0, &data));
            let even = at & !1;
            prop_assert_eq!(xor16(xor16(0, &data[..even]), &data[even..]), xor16(0, &data));
        }
    }
}
