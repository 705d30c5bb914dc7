//! Pictures, sound, arrays of numbers.

use acomp::PAGE_SIZE;

use super::Class;
use crate::pages::{halves, shorts, words};

pub(super) fn images(all: &mut Vec<Class>) {
    for noise in [0, 1, 2, 4, 16, 64] {
        all.push(Class::new(format!("gray rows, noise {noise}"), move |number, random| {
            (0..PAGE_SIZE)
                .map(|at| (at % 512 / 4 + at / 512 + number) as u8)
                .map(|level| level.wrapping_add(random.below(noise + 1) as u8))
                .collect()
        }));
        all.push(Class::new(format!("RGBA, noise {noise}"), move |_, random| {
            let mut level = 100;
            halves(|at| {
                if at % 40 == 0 {
                    level = 60 + random.below(100) as u32;
                }
                let mut channel = |base: u32| base + random.below(noise + 1) as u32;
                0xff00_0000 | channel(level) | channel(level + 10) << 8 | channel(level / 2) << 16
            })
        }));
        all.push(Class::new(format!("RGB, noise {noise}"), move |_, random| {
            let mut level = 100u8;
            (0..PAGE_SIZE)
                .map(|at| {
                    if at % 150 == 0 {
                        level = 60 + random.below(100) as u8;
                    }
                    level + (at % 3) as u8 * 10 + random.below(noise + 1) as u8
                })
                .collect()
        }));
    }
    all.push(Class::new("bitmap of letters", |_, random| {
        let glyphs: Vec<[u8; 8]> =
            (0..26).map(|_| std::array::from_fn(|_| (random.next() & random.next()) as u8)).collect();
        let line: Vec<usize> = (0..512).map(|_| random.below(26).min(random.below(26)) as usize).collect();
        (0..PAGE_SIZE).map(|at| glyphs[line[at % 64 + at / 512 * 64]][at / 64 % 8]).collect()
    }));
    all.push(Class::new("flat areas of a screen", |_, random| {
        let mut colour = 0;
        halves(|_| {
            if random.below(60) == 0 {
                colour = [0xff20_2020, 0xffff_ffff, 0xff30_60a0, 0xff00_0000][random.below(4) as usize];
            }
            colour
        })
    }));
    for loudness in [20.0, 300.0, 3000.0, 20_000.0] {
        all.push(Class::new(format!("sound, mono, {loudness}"), move |number, random| {
            shorts(|at| {
                let time = (2048 * number + at) as f64;
                let value = (time * 0.03).sin() + (time * 0.11).sin() * 0.4 + random.normal() * 0.02;
                (value * loudness) as i16 as u16
            })
        }));
        all.push(Class::new(format!("sound, stereo, {loudness}"), move |number, random| {
            shorts(|at| {
                let time = (1024 * number + at / 2) as f64;
                let value = (time * 0.03 + (at % 2) as f64).sin() + random.normal() * 0.02;
                (value * loudness) as i16 as u16
            })
        }));
    }
    all.push(Class::new("sound, float", |number, random| {
        halves(|at| {
            (((1024 * number + at) as f32 * 0.03).sin() * 0.3 + random.normal() as f32 * 0.01).to_bits()
        })
    }));
}

pub(super) fn numbers(all: &mut Vec<Class>) {
    for step in [1, 2, 10, 100, 1000, 10_000, 100_000, 1 << 24] {
        all.push(Class::new(format!("sorted int32, steps below {step}"), move |_, random| {
            let mut value = random.below(1 << 28) as u32;
            halves(|_| {
                value = value.wrapping_add(random.below(step) as u32);
                value
            })
        }));
        all.push(Class::new(format!("sorted int64, steps below {step}"), move |_, random| {
            let mut value = random.below(1 << 40);
            words(|_| {
                value += random.below(step);
                value
            })
        }));
        all.push(Class::new(format!("int32 below {step}"), move |_, random| {
            halves(|_| random.below(step) as u32)
        }));
        all.push(Class::new(format!("int64 below {step}"), move |_, random| words(|_| random.below(step))));
    }
    for share in [2, 4, 8, 16, 32, 64] {
        all.push(Class::new(format!("float, one of {share} set"), move |_, random| {
            halves(|_| if random.below(share) == 0 { (random.normal() as f32).to_bits() } else { 0 })
        }));
        all.push(Class::new(format!("double, one of {share} set"), move |_, random| {
            words(|_| if random.below(share) == 0 { random.normal().to_bits() } else { 0 })
        }));
        all.push(Class::new(format!("int32, one of {share} set"), move |_, random| {
            halves(|_| if random.below(share) == 0 { random.below(1000) as u32 } else { 0 })
        }));
        all.push(Class::new(format!("bytes, one of {share} set"), move |_, random| {
            (0..PAGE_SIZE).map(|_| if random.below(share) == 0 { random.next() as u8 } else { 0 }).collect()
        }));
    }
    for count in [2, 4, 10, 50, 200] {
        all.push(Class::new(format!("one of {count} doubles"), move |_, random| {
            let values: Vec<u64> = (0..count).map(|_| random.normal().to_bits()).collect();
            words(|_| values[random.below(count) as usize])
        }));
        all.push(Class::new(format!("one of {count} floats"), move |_, random| {
            let values: Vec<u32> = (0..count).map(|_| (random.normal() as f32).to_bits()).collect();
            halves(|_| values[random.below(count) as usize])
        }));
        all.push(Class::new(format!("one of {count} strings of 16"), move |_, random| {
            let values: Vec<u128> =
                (0..count).map(|_| u128::from(random.next()) << 64 | u128::from(random.next())).collect();
            (0..PAGE_SIZE / 16).flat_map(|_| values[random.below(count) as usize].to_le_bytes()).collect()
        }));
    }
    all.push(Class::new("points of doubles", |_, random| {
        let mut at = [0.0, 0.0, 100.0];
        words(|number| {
            let axis = &mut at[number % 3];
            *axis += random.normal() * 0.01;
            axis.to_bits()
        })
    }));
    all.push(Class::new("points of floats", |_, random| {
        let mut at = [0.0f32, 0.0, 100.0];
        halves(|number| {
            let axis = &mut at[number % 3];
            *axis += random.normal() as f32 * 0.01;
            axis.to_bits()
        })
    }));
    all.push(Class::new("triangles", |number, random| {
        let mut vertex = 1000 * number as u32;
        halves(|at| {
            vertex += u32::from(at % 3 == 0);
            vertex + random.below(40) as u32
        })
    }));
    all.push(Class::new("weights, bfloat16", |_, random| {
        shorts(|_| ((random.normal() as f32 * 0.02).to_bits() >> 16) as u16)
    }));
    all.push(Class::new("records of int32, float and flags", |number, random| {
        halves(|at| match at % 5 {
            0 => (number * 205 + at / 5) as u32,
            1 => (random.unit() as f32 * 100.0).to_bits(),
            2 => random.below(5) as u32,
            3 => 1_790_000_000 + (number * 205 + at / 5) as u32,
            _ => 0,
        })
    }));
}
