//! Moves of pages while threads of a program change its mappings, in thousands of random
//! interleavings, against a model of the kernel: `cargo test -p uzswap-address-space --features
//! shuttle --lib interleavings`.
//!
//! The module under test is unchanged. The threads are those of a process: two of the program, two
//! handlers, one that evicts and compresses, and one that registers and ends grace periods. Each
//! thread of the program knows what every page of its mapping must hold.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use shuttle::rand::{thread_rng, Rng};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

use sys::PAGE_SIZE;

use crate::accounts::Plenty;
use crate::address_space::{AddressSpace, Read, Settings};
use crate::model::{Kernel, MAPPING_PAGES, PLACES, PLACE_BYTES, PROGRAM};
use crate::transition::fault_in::FaultedIn;
use crate::transition::inbound::Inbound;
use crate::units::{page_at, BlockNumber, PageMask, BLOCK_BYTES, BLOCK_PAGES};

/// Runs of the scheduler (some thousand a second) and the seed. Both are fixed, so that a new
/// failure comes from a code change. `UZSWAP_TEST_MODEL_ROUNDS=100000` runs other interleavings.
const ROUNDS: usize = 4000;
const SEED: u64 = 20_261_122;
const STEPS: usize = 14;

struct World {
    kernel: Arc<Kernel>,
    pages: AddressSpace,
    running: AtomicUsize,
}

fn world() -> Arc<World> {
    let kernel = Kernel::begin();
    let (pages, _) =
        AddressSpace::new(&Settings::for_tests(64), Settings::store_for_tests(), &Plenty).unwrap();
    Arc::new(World { kernel, pages, running: AtomicUsize::new(2) })
}

impl World {
    fn is_over(&self) -> bool {
        self.running.load(Ordering::SeqCst) == 0 && !self.kernel.has_messages()
    }

    fn run(&self, thread: usize) {
        let mut random = thread_rng();
        let mut at = None;
        let mut numbers = [0; MAPPING_PAGES];
        for step in 0..STEPS {
            let Some(start) = at else {
                at = self.kernel.mmap();
                numbers = [0; MAPPING_PAGES];
                continue;
            };
            let page = random.gen_range(0..MAPPING_PAGES);
            let place = page_at(start, page);
            match random.gen_range(0..10) {
                0..=3 => {
                    numbers[page] = 1000 * (thread + 1) + step;
                    self.kernel.touch(place, Some(numbers[page]));
                }
                4..=5 => assert_eq!(self.kernel.touch(place, None), numbers[page], "page {place:#x}"),
                6 => {
                    self.kernel.discard(place, PAGE_SIZE);
                    numbers[page] = 0;
                }
                7..=8 => at = Some(self.kernel.mremap(start)),
                _ => {
                    self.kernel.munmap(start);
                    at = None;
                }
            }
        }
        for (page, number) in numbers.into_iter().enumerate() {
            if let Some(start) = at {
                assert_eq!(self.kernel.touch(page_at(start, page), None), number, "page {page} at the end");
            }
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    fn handle(&self) {
        let own = sys::arena::take(PAGE_SIZE, PAGE_SIZE).unwrap().as_ptr() as usize;
        let mut inbound = Inbound::new(own);
        let mut waiting = VecDeque::new();
        while !self.is_over() {
            if let Read::Fault { page, write, .. } = self.pages.read_message() {
                waiting.push_back((page, write));
            }
            let Some((page, write)) = waiting.pop_front() else {
                thread::yield_now();
                continue;
            };
            let window = thread_rng().gen_range(1..=MAPPING_PAGES);
            match self.pages.fault_in(&mut inbound, page, write, window) {
                FaultedIn::Done(_) => {}
                FaultedIn::Again => waiting.push_back((page, write)),
                FaultedIn::NoMemory => panic!("the model has memory"),
                FaultedIn::OnDisk => panic!("the model has no swap file"),
            }
        }
        inbound.frames.empty_out(&self.pages.staging);
    }

    fn reclaim(&self) {
        while !self.is_over() {
            let block = BlockNumber::of(PROGRAM + thread_rng().gen_range(0..PLACES) * PLACE_BYTES);
            let mask = PageMask::from_bits(self.pages.pagemap().mapped(block.address(), BLOCK_PAGES) as u32);
            let tracker = self.pages.tracker();
            if tracker.sees_uses() && thread_rng().gen_bool(0.5) {
                let mut runs = [sys::pagemap::Run::default(); BLOCK_PAGES];
                let (count, _) = tracker.look(block.address(), block.end(), &mut runs);
                for run in runs[..count].iter().filter(|run| run.is_used()) {
                    tracker.arm(run.start as usize, (run.end - run.start) as usize);
                }
            }
            let mut spare = self.pages.staging.take_empty();
            if !mask.is_empty() && thread_rng().gen_bool(0.7) {
                self.pages.evict(&mut spare, block, mask, false);
            } else {
                self.pages.compress_oldest();
            }
            spare.into_iter().for_each(|slot| self.pages.staging.give(slot));
            thread::yield_now();
        }
    }

    /// The control thread: registers, and waits until threads have left the calls that discard.
    fn control(&self) {
        let mut suspects: Option<BTreeSet<u64>> = None;
        while !self.is_over() {
            for at in self.kernel.unregistered() {
                self.pages.register(at..page_at(at, MAPPING_PAGES));
            }
            match &suspects {
                None if self.pages.discards.are_pending() => {
                    self.pages.discards.begin_grace();
                    suspects = Some(self.kernel.discarding());
                }
                Some(calls) if calls.is_disjoint(&self.kernel.discarding()) => {
                    self.pages.discards.end_grace(self.pages.table());
                    suspects = None;
                }
                _ => {}
            }
            thread::yield_now();
        }
    }
}

#[test]
fn no_order_of_steps_loses_a_page_or_leaves_it_stale() {
    assert_eq!(PLACE_BYTES * 2, BLOCK_BYTES);
    let rounds = std::env::var("UZSWAP_TEST_MODEL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let test = || {
        let world = world();
        let spawn = |body: fn(&World)| {
            let world = world.clone();
            thread::spawn(move || body(&world))
        };
        let threads: [fn(&World); 6] = [
            |world| world.run(0),
            |world| world.run(1),
            World::handle,
            World::handle,
            World::reclaim,
            World::control,
        ];
        for thread in threads.map(spawn) {
            thread.join().unwrap();
        }
    };
    match rounds {
        None => shuttle::check_random_with_seed(test, SEED, ROUNDS),
        Some(rounds) => shuttle::check_random(test, rounds),
    }
}
