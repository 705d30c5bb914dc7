//! Machine code.

use acomp::PAGE_SIZE;

use super::Class;
use crate::pages::{halves, words};

/// Machine code made from the most frequent openings of compilers.
pub(super) fn code(all: &mut Vec<Class>) {
    const FORMS: &[(&[u8], usize)] = &[
        (&[0x48, 0x8b, 0x45], 1),
        (&[0x48, 0x89, 0x45], 1),
        (&[0x48, 0x8b, 0x05], 4),
        (&[0x48, 0x8d, 0x3d], 4),
        (&[0xe8], 4),
        (&[0x0f, 0x84], 4),
        (&[0x74], 1),
        (&[0x75], 1),
        (&[0xc3], 0),
        (&[0x55, 0x48, 0x89, 0xe5], 0),
        (&[0x48, 0x83, 0xec], 1),
        (&[0x31, 0xc0], 0),
        (&[0x85, 0xc0], 0),
        (&[0x4c, 0x89, 0xe7], 0),
        (&[0x41, 0x5c, 0x41, 0x5d], 0),
        (&[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00], 0),
        (&[0x90], 0),
    ];
    all.push(Class::new("x86-64 code", |_, random| {
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            let (opening, operand) = FORMS[random.below(FORMS.len() as u64) as usize];
            page.extend(opening);
            match operand {
                1 => page.push((random.below(32) * 8) as u8),
                4 => page.extend((random.below(1 << 17) as i32 - (1 << 16)).to_le_bytes()),
                _ => {}
            }
        }
        page
    }));
    all.push(Class::new("aarch64 code", |_, random| {
        const OPENINGS: [u32; 12] = [
            0xf940_0000,
            0xf900_0000,
            0x9100_0000,
            0x9400_0000,
            0xb400_0000,
            0xaa00_03e0,
            0xd65f_03c0,
            0xa9be_7bfd,
            0x5280_0000,
            0x3940_0000,
            0xeb00_001f,
            0x5400_0000,
        ];
        halves(|_| {
            let opening = OPENINGS[random.below(12).min(random.below(12)) as usize];
            opening | (random.below(32) << 5 | random.below(32)) as u32 | (random.below(16) << 10) as u32
        })
    }));
    all.push(Class::new("jump tables", |number, random| {
        halves(|_| (0xffff_0000u32 - 4096 * number as u32).wrapping_add(4 * random.below(4000) as u32))
    }));
    all.push(Class::new("relocations", |number, random| {
        words(|at| match at % 3 {
            0 => 0x003f_0000 + 8 * (170 * number + at / 3) as u64,
            1 => 8,
            _ => 0x0012_0000 + 16 * random.below(1 << 14),
        })
    }));
    all.push(Class::new("symbols", |_, random| {
        let mut name = 0;
        words(|at| match at % 3 {
            0 => {
                name += 5 + random.below(30);
                name | [0x0012, 0x0022, 0x0011][random.below(3) as usize] << 32 | (14 << 48)
            }
            1 => 0x0040_0000 + 16 * random.below(1 << 16),
            _ => random.below(600),
        })
    }));
    all.push(Class::new("byte code", |_, random| {
        (0..PAGE_SIZE)
            .map(|at| if at % 2 == 0 { 100 + random.below(20) as u8 } else { random.below(16) as u8 })
            .collect()
    }));
}
