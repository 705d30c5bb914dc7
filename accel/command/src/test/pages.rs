//! Pages to test with: of several kinds, the same every time.

pub const KINDS: [&str; 4] = ["zero", "text", "structures", "random"];

/// A page of memory, aligned as programs' pages are.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page(pub [u8; 4096]);

impl Page {
    pub const ZERO: Self = Page([0; 4096]);
}

/// A generator of numbers: xorshift, which needs no crate and is the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// `count` pages, of all kinds in turn.
pub fn make(count: usize) -> Vec<Page> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    (0..count).map(|index| page(KINDS[index % KINDS.len()], &mut numbers)).collect()
}

fn page(kind: &str, numbers: &mut Numbers) -> Page {
    const WORDS: [&str; 16] = [
        "page", "queue", "device", "engine", "the", "of", "and", "memory", "swap", "error", "value", "name",
        "request", "is", "not", "found",
    ];
    let mut page = Page::ZERO;
    match kind {
        "text" => {
            let mut at = 0;
            while at < 4096 {
                let word = WORDS[numbers.below(16) as usize].bytes().chain([b' ']);
                for byte in word.take(4096 - at) {
                    page.0[at] = byte;
                    at += 1;
                }
            }
        }
        // Pointers near each other, small counts, flags: as in heaps.
        "structures" => {
            for record in page.0.chunks_exact_mut(32) {
                let pointer = 0x7f3a_1400_0000 + numbers.below(1 << 20) * 16;
                record[..8].copy_from_slice(&pointer.to_le_bytes());
                record[8..12].copy_from_slice(&(numbers.below(40) as u32).to_le_bytes());
                record[12] = numbers.below(4) as u8;
                record[16..24].copy_from_slice(&(pointer + 64).to_le_bytes());
            }
        }
        "random" => {
            for word in page.0.chunks_exact_mut(8) {
                word.copy_from_slice(&numbers.next().to_le_bytes());
            }
        }
        _ => {}
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_differ_and_are_the_same_every_time() {
        let pages = make(8);
        assert!(pages[0].0 == [0; 4096] && pages[1].0.is_ascii());
        assert!(pages[2].0 != pages[6].0 && pages[3].0 != pages[7].0);
        assert!(pages.iter().zip(make(8)).all(|(one, other)| one.0 == other.0));
    }
}
