//! More classes than [`super::CLASSES`]: typical memory, varied one parameter at a time.

#![allow(dead_code)]

mod arrays;
mod code;
mod heaps;
mod plain;
mod texts;

use acomp::{Page, PAGE_SIZE};

use super::Random;

/// Makes the bytes of one page, at least 4096. The number counts the pages of the class.
type Make = Box<dyn Fn(usize, &mut Random) -> Vec<u8>>;

/// One class of pages.
pub struct Class {
    /// A description of its pages.
    pub name: String,
    make: Make,
}

impl Class {
    fn new(name: impl Into<String>, make: impl Fn(usize, &mut Random) -> Vec<u8> + 'static) -> Self {
        Class { name: name.into(), make: Box::new(make) }
    }

    /// Returns page `number` of the class.
    pub fn page(&self, number: usize, random: &mut Random) -> Page {
        *(self.make)(number, random).first_chunk().expect("a page's bytes")
    }

    /// Returns `count` pages, the same on every run.
    pub fn pages(&self, count: usize) -> Vec<Page> {
        let mut random = Random(seed(&self.name));
        (0..count).map(|number| self.page(number, &mut random)).collect()
    }
}

/// Derives a seed from a name.
pub fn seed(name: &str) -> u64 {
    name.bytes().fold(1, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

/// Returns all classes, including the narrow ones of [`super::CLASSES`].
pub fn classes() -> Vec<Class> {
    let mut all = Vec::new();
    for &(name, make) in super::CLASSES {
        all.push(Class::new(name, make));
    }
    plain::periodic(&mut all);
    plain::zeros(&mut all);
    plain::structs(&mut all);
    heaps::heaps(&mut all);
    texts::texts(&mut all);
    arrays::images(&mut all);
    arrays::numbers(&mut all);
    code::code(&mut all);
    all
}
fn put(page: &mut [u8], at: usize, value: u64) {
    page[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// How [`mix`] joins two pages.
pub const MIXES: usize = 4;

/// Joins two pages: halves, a part at some place, lines or blocks in turn.
pub fn mix(how: usize, one: &Page, other: &Page, random: &mut Random) -> Page {
    let mut page = *one;
    let block = match how % MIXES {
        0 => PAGE_SIZE / 2,
        1 => {
            let at = random.below(PAGE_SIZE as u64) as usize;
            page[at..].copy_from_slice(&other[at..]);
            return page;
        }
        2 => 1024,
        _ => 256,
    };
    for at in (0..PAGE_SIZE).step_by(2 * block) {
        page[at..at + block].copy_from_slice(&other[at..at + block]);
    }
    page
}
