//! Tests of [`crate::entry`], in their own file because the model checker compiles that file alone.

use crate::entry::{Entry, FrameOffset, Object, FRAME_LIMIT};

const OBJECT: Object = Object { place: FrameOffset { frame: 0xabcdef, offset: 0x1234 }, len: 65536 };

fn published() -> Entry {
    let entry = Entry::free();
    assert_eq!(entry.peek(), None);
    entry.reserve(OBJECT);
    assert_eq!((entry.peek(), entry.reserved()), (None, OBJECT));
    entry.publish();
    entry
}

#[test]
fn content_survives_the_packing() {
    for len in [1, 2, 4096, 65535, 65536] {
        for frame in [0, 1, FRAME_LIMIT - 1] {
            for offset in [0, 1, 65535] {
                let object = Object { place: FrameOffset { frame, offset }, len };
                let entry = Entry::free();
                entry.reserve(object);
                entry.publish();
                assert_eq!(entry.peek(), Some(object));
            }
        }
    }
}

#[test]
fn readers_share_and_movers_keep_off() {
    let entry = published();
    assert_eq!(entry.pin(), OBJECT);
    assert_eq!(entry.pin(), OBJECT);
    assert!(!entry.try_lock(OBJECT));
    entry.unpin();
    assert!(!entry.try_lock(OBJECT));
    entry.unpin();
    assert!(entry.try_lock(OBJECT));
    let moved = Object { place: FrameOffset { frame: 1, offset: 2 }, len: 65536 };
    entry.unlock(moved);
    assert!(!entry.try_lock(OBJECT), "it is elsewhere now");
    assert_eq!(entry.claim(), moved);
    assert_eq!(entry.peek(), None);
    entry.set_next(77);
    assert_eq!(entry.next(), 77);
}

#[test]
#[should_panic(expected = "being read")]
fn freeing_under_a_reader_is_refused() {
    let entry = published();
    entry.pin();
    entry.claim();
}

#[test]
#[should_panic(expected = "freed handle")]
fn freeing_twice_is_refused() {
    let entry = published();
    entry.claim();
    entry.claim();
}
