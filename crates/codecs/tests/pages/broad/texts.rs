//! Text in many forms.

use acomp::PAGE_SIZE;

use super::Class;
use crate::pages::{text, word, words};

pub(super) fn texts(all: &mut Vec<Class>) {
    all.push(Class::new("log lines", |number, random| {
        let mut second = number as u64 * 60;
        text(random, |random| {
            second += random.below(3);
            let level = ["INFO", "INFO", "INFO", "WARN", "DEBUG"][random.below(5) as usize];
            format!(
                "2026-11-21T09:{:02}:{:02}.{:03}Z {level} worker-{} request id={:08x} took {} us\n",
                second / 60 % 60,
                second % 60,
                random.below(1000),
                random.below(8),
                random.next() as u32,
                random.below(5000)
            )
        })
    }));
    all.push(Class::new("access log", |_, random| {
        text(random, |random| {
            format!(
                "10.0.{}.{} - - [21/Nov/2026:09:0{}:{:02} +0000] \"GET /{}/{} HTTP/1.1\" 200 {}\n",
                random.below(256),
                random.below(256),
                random.below(10),
                random.below(60),
                word(random),
                random.below(1000),
                random.below(100_000)
            )
        })
    }));
    all.push(Class::new("xml", |_, random| {
        text(random, |random| {
            format!("  <item id=\"{}\"><name>{}</name></item>\n", random.below(10_000), word(random))
        })
    }));
    all.push(Class::new("source", |_, random| {
        text(random, |random| {
            format!(
                "    let {} = self.{}({}, {})?;\n",
                word(random),
                word(random),
                word(random),
                random.below(10)
            )
        })
    }));
    all.push(Class::new("paths", |_, random| {
        text(random, |random| format!("/usr/lib/{}/{}/{}.so\0", word(random), word(random), word(random)))
    }));
    all.push(Class::new("hex dump", |number, random| {
        let mut at = 4096 * number;
        text(random, |random| {
            at += 16;
            format!("{at:08x}  {:016x} {:016x}\n", random.next(), random.next())
        })
    }));
    all.push(Class::new("decimal numbers", |_, random| {
        text(random, |random| format!("{} ", random.below(1 << 32)))
    }));
    all.push(Class::new("dna", |_, random| {
        (0..PAGE_SIZE).map(|_| b"ACGT"[random.below(4) as usize]).collect()
    }));
    all.push(Class::new("words in lines of 80, padded", |_, random| {
        text(random, |random| {
            format!("{:<79}\n", format!("{} {} {}", word(random), word(random), random.below(1000)))
        })
    }));
    all.push(Class::new("json records", |number, random| {
        text(random, |random| {
            format!(
                "{{\"ts\":{},\"user\":\"{}\",\"ok\":{},\"tags\":[\"{}\",\"{}\"],\"v\":{:.4}}}\n",
                1_790_000_000_000u64 + number as u64 * 977 + random.below(1000),
                word(random),
                random.below(2) == 0,
                word(random),
                word(random),
                random.unit()
            )
        })
    }));
    for (name, base) in [("ascii", 0u32), ("greek", 0x0370), ("cjk", 0x4e00)] {
        let spread = if base == 0x4e00 { 2000 } else { 26 };
        all.push(Class::new(format!("utf-16, {name}"), move |_, random| {
            let letters: Vec<u32> = (0..26).map(|_| random.below(spread) as u32).collect();
            let mut page = Vec::new();
            while page.len() < PAGE_SIZE {
                let word = word(random);
                for byte in word.bytes().chain(*b" ") {
                    let unit = match base {
                        0 => u32::from(byte),
                        _ if byte == b' ' => 0x20,
                        _ => base + letters[(usize::from(byte) + word.len()) % letters.len()],
                    };
                    page.extend((unit as u16).to_le_bytes());
                }
            }
            page
        }));
        all.push(Class::new(format!("utf-32, {name}"), move |_, random| {
            let mut page = Vec::new();
            while page.len() < PAGE_SIZE {
                for byte in word(random).bytes().chain(*b" ") {
                    let unit = if byte == b' ' { 0x20 } else { base + u32::from(byte) % spread as u32 };
                    page.extend(unit.to_le_bytes());
                }
            }
            page
        }));
    }
    all.push(Class::new("utf-8, greek", |_, random| {
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            for byte in word(random).bytes() {
                page.extend([0xce, 0x80 + byte % 64]);
            }
            page.push(b' ');
        }
        page
    }));
    all.push(Class::new("cells of a terminal", |_, random| {
        let letters: Vec<u8> =
            text(random, |random| format!("{} ", word(random))).into_iter().take(PAGE_SIZE / 8).collect();
        words(|at| u64::from(letters[at]) | 0x0007_0000_0000_0000)
    }));
    all.push(Class::new("base64 in lines", |_, random| {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        (0..PAGE_SIZE)
            .map(|at| if at % 77 == 76 { b'\n' } else { DIGITS[random.below(64) as usize] })
            .collect()
    }));
    all.push(Class::new("varints and short strings", |_, random| {
        let mut page = Vec::new();
        while page.len() < PAGE_SIZE {
            page.extend([0x0a, 0x12, 0x08, random.below(128) as u8 | 0x80, random.below(100) as u8, 0x12]);
            let word = word(random);
            page.push(word.len() as u8);
            page.extend(word.bytes());
            page.extend([0x1d]);
            page.extend((random.unit() as f32).to_le_bytes());
        }
        page
    }));
}
