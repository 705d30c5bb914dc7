//! The life of trained codebook sets. They belong to the process, so this file has one test.

mod pages;

use acomp::{Object, Page, PAGE_SIZE};
use codecs::t16h::{release, trained_page_sets, trained_sets, KIND_PAGE};
use pages::{algorithm, compress, decompress, Random};

fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Pages unlike the built-in set's: a set is trained for them, and freed after their last page.
#[test]
fn sets_are_trained_and_live_as_long_as_their_pages() {
    let before = anonymous_bytes();
    let mut context = algorithm("t16h").context().expect("memory");
    // Eight sets of 264 KiB and samples of twice 768 KiB are allocated but untouched.
    let touched = anonymous_bytes() - before;
    assert!(touched < 3 << 19, "{touched} bytes");
    let mut random = Random(77);
    let mut page = |kind: u64| -> Page {
        let mut page = [0; PAGE_SIZE];
        for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let value = match at % 3 {
                0 => 0x7abc_0000_0000 + 4 * (random.below(2000) ^ (kind * 0x5a5)),
                1 => 0x1111 * random.below(3 + kind),
                _ => 0x6000_1234_0000 + 8 * random.below(100 + 700 * kind),
            };
            *word = value.to_le_bytes();
        }
        page
    };
    let number_of = |object: &[u8]| u16::from_le_bytes([object[1], object[2]]);
    let mut stored: Vec<(Page, Vec<u8>)> = Vec::new();
    for _ in 0..800 {
        let pages: Vec<Page> = (0..8).map(|_| page(0)).collect();
        let objects = compress(context.as_mut(), &pages, PAGE_SIZE);
        stored.extend(pages.into_iter().zip(objects.into_iter().map(|object| object.expect("it shrinks"))));
    }
    let (first, last) = (&stored[0].1, &stored[stored.len() - 1].1);
    assert_ne!(number_of(last), 0, "no set was trained in 6400 pages");
    assert!(last.len() < first.len(), "{} bytes after training, {} before", last.len(), first.len());
    let number = number_of(last);
    let own = stored.iter().filter(|(_, object)| number_of(object) == number).count() as u64;
    assert!(trained_sets().contains(&(number, own)), "{number}, {own}: {:?}", trained_sets());

    for (page, object) in stored {
        assert!(decompress(context.as_mut(), &object, PAGE_SIZE).expect("its set is alive") == page);
        release(Object::whole(&object), 1);
    }
    assert!(trained_sets().contains(&(number, 0)), "{:?}", trained_sets());

    // Pages change and are dropped at once: a set would save nothing.
    let mut others = |is_kept: bool| -> Vec<Vec<u8>> {
        let mut kept = Vec::new();
        for _ in 0..1200 {
            let pages: Vec<Page> = (0..8).map(|_| page(5)).collect();
            let objects = compress(context.as_mut(), &pages, PAGE_SIZE).into_iter().flatten();
            match is_kept {
                true => kept.extend(objects),
                false => objects.for_each(|object| release(Object::whole(&object), 1)),
            }
        }
        kept
    };
    others(false);
    assert_eq!(trained_sets(), [(number, 0)]);
    // The remaining pages get another set, and the first is freed.
    let kept = others(true);
    let last = number_of(kept.last().expect("they shrink"));
    assert!(last != number, "no other set was trained in 9600 pages");
    let of_first = kept.iter().filter(|object| number_of(object) == number);
    of_first.for_each(|object| release(Object::whole(object), 1));
    others(false);
    assert!(trained_sets().iter().all(|&(alive, _)| alive != number), "{:?}", trained_sets());

    // Text has sets of its own.
    let mut text = || -> Page {
        let page = pages::text(&mut random, |random| match random.below(4) {
            0 => format!("{:x} ", random.below(1 << 20)),
            _ => format!("{} ", pages::word(random)),
        });
        *page.first_chunk().expect("a page's bytes")
    };
    let (mut first, mut latest) = (0, 0);
    let mut kept = Vec::new();
    for round in 0..800 {
        let pages: Vec<Page> = (0..8).map(|_| text()).collect();
        let objects = compress(context.as_mut(), &pages, PAGE_SIZE);
        let total: usize = objects.iter().flatten().map(Vec::len).sum();
        if round == 0 {
            first = total;
        }
        latest = total;
        for (object, page) in objects.iter().zip(&pages) {
            let object = object.as_ref().expect("text shrinks");
            assert_eq!(object[0], KIND_PAGE);
            assert!(decompress(context.as_mut(), object, PAGE_SIZE).expect("its set is alive") == *page);
        }
        kept.extend(objects.into_iter().flatten());
    }
    kept.iter().for_each(|object| release(Object::whole(object), 1));
    assert!(latest * 50 < first * 49, "{latest} bytes after training, {first} before");
    let alive = trained_page_sets();
    assert!(!alive.is_empty() && alive.iter().all(|&(_, pages)| pages == 0), "{alive:?}");
}
