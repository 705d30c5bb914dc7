//! Trackers against a plain model, on mappings that change at random.

use std::collections::BTreeMap;

use sys::pagemap::{Pagemap, Run};
use sys::userfaultfd::{feature, Userfaultfd, MISSING};
use sys::PAGE_SIZE;

use super::simulated::Simulated;
use super::{AccessTracker, Rwp};
use crate::units::{bytes_of, page_at, pages_in};

const PAGES: usize = 96;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

fn map() -> usize {
    sys::memory::map(bytes_of(PAGES)).unwrap().as_ptr() as usize
}

/// Every present page, and whether it is used, from looks with `room` runs each.
fn look(tracker: &dyn AccessTracker, base: usize, room: usize) -> BTreeMap<usize, bool> {
    let (mut at, end, mut found) = (base, page_at(base, PAGES), BTreeMap::new());
    while at < end {
        let mut runs = [Run::default(); 8];
        let (count, walked) = tracker.look(at, end, &mut runs[..room]);
        assert!(walked > at && walked <= end, "a look gets on");
        for run in &runs[..count] {
            assert!(run.start as usize >= at && run.end as usize <= walked && run.start < run.end);
            for page in (run.start as usize..run.end as usize).step_by(PAGE_SIZE) {
                assert_eq!(found.insert(pages_in(page - base), run.is_used()), None, "found once");
            }
        }
        at = walked;
    }
    found
}

fn plays_like_a_model(tracker: &dyn AccessTracker, base: usize, touch: impl Fn(usize), fill: impl Fn(usize)) {
    let mut random = Random(88_172_645_463_325_252);
    let mut model: BTreeMap<usize, bool> = BTreeMap::new();
    for round in 0..4000 {
        let first = random.below(PAGES);
        let count = 1 + random.below((PAGES - first).min(20));
        let range = first..first + count;
        match random.below(10) {
            0..2 => {
                tracker.arm(page_at(base, first), bytes_of(count));
                model.range_mut(range).for_each(|(_, used)| *used = false);
            }
            2 => {
                tracker.disarm(page_at(base, first), bytes_of(count));
                model.range_mut(range).for_each(|(_, used)| *used = true);
            }
            3 => {
                // SAFETY: the test's own mapping.
                let discarded = unsafe {
                    let at = page_at(base, first) as *mut libc::c_void;
                    libc::madvise(at, bytes_of(count), libc::MADV_DONTNEED)
                };
                assert_eq!(discarded, 0);
                // A page that was discarded is not armed when it returns.
                tracker.disarm(page_at(base, first), bytes_of(count));
                model.retain(|page, _| !range.contains(page));
            }
            4..7 => {
                if !model.contains_key(&first) {
                    fill(page_at(base, first));
                }
                // SAFETY: a present page of the test.
                unsafe { (page_at(base, first) as *mut usize).write_volatile(round) };
                touch(page_at(base, first));
                model.insert(first, true);
            }
            _ => assert_eq!(look(tracker, base, 1 + random.below(8)), model, "round {round}"),
        }
    }
}

#[test]
fn a_simulated_tracker_is_like_the_model() {
    let simulated: &'static Simulated = Box::leak(Box::new(Simulated::default()));
    plays_like_a_model(&simulated, map(), |at| simulated.touch(at), |_| ());
}

#[test]
fn the_kernel_is_like_the_model() {
    let wanted = feature::TRACKING | feature::MOVING;
    if Userfaultfd::features().map_or(0, |all| all & wanted) != wanted {
        return testkit::skip!("kernel", "no access tracking before Linux 7.3");
    }
    let uffd = Userfaultfd::open(wanted).unwrap();
    let tracker = Rwp::new(&uffd, Pagemap::open().unwrap(), wanted);
    let base = map();
    uffd.register(base, bytes_of(PAGES), MISSING | tracker.mode()).unwrap();
    let fill = |at| {
        let page = [[0u8; PAGE_SIZE]; 2];
        let source = (page.as_ptr() as usize).next_multiple_of(PAGE_SIZE);
        // SAFETY: a page of the array and a missing page of the test's mapping.
        assert_eq!(unsafe { uffd.copy(at, source, PAGE_SIZE) }.stop, None);
    };
    plays_like_a_model(&tracker, base, |_| (), fill);
    uffd.close();
}

#[test]
fn without_tracking_no_page_is_used_and_none_is_missed() {
    let Ok(uffd) = Userfaultfd::open(0) else { return testkit::skip!("userfaultfd", "no userfaultfd") };
    let pagemap = Pagemap::open().unwrap();
    let (tracker, base) = (Rwp::new(&uffd, pagemap, feature::MOVING), map());
    for page in [3, 4, 90] {
        // SAFETY: a page of the test.
        unsafe { (page_at(base, page) as *mut usize).write_volatile(1) };
    }
    tracker.arm(base, bytes_of(PAGES));
    assert_eq!((tracker.sees_uses(), tracker.mode()), (false, 0), "what was not agreed on");
    assert_eq!(look(&tracker, base, 4), [(3, false), (4, false), (90, false)].into());
    uffd.close();
}
