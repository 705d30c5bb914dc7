//! Random operations against a plain model: every object keeps its bytes, every figure its value.

mod common;

use std::collections::BTreeMap;

use common::{content, Random};
use proptest::prelude::*;
use zsmalloc::{AllocError, Config, Handle, Pool, OBJECT_BYTES_MAX};

/// One step. Numbers select existing objects by remainder.
#[derive(Debug, Clone)]
enum Step {
    Malloc { sizes: Vec<u32>, nid: u8 },
    Write { which: usize, stamp: u64 },
    Read { which: usize, count: usize },
    Free { which: usize, count: usize },
    Compact,
    Inherit,
    FailObject { after: u32 },
    FailFrames { after: u32, sizes: Vec<u32> },
}

fn size() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 300..1800u32,
        2 => 1..300u32,
        2 => 1800..4097u32,
        1 => 4097..=OBJECT_BYTES_MAX as u32,
        1 => Just(1000u32),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::collection::vec(size(), 1..9), 0..4u8).prop_map(|(sizes, nid)| Step::Malloc { sizes, nid }),
        2 => (any::<usize>(), any::<u64>()).prop_map(|(which, stamp)| Step::Write { which, stamp }),
        3 => (any::<usize>(), 1..9usize).prop_map(|(which, count)| Step::Read { which, count }),
        4 => (any::<usize>(), 1..12usize).prop_map(|(which, count)| Step::Free { which, count }),
        1 => Just(Step::Compact),
        1 => Just(Step::Inherit),
        1 => (0..8u32).prop_map(|after| Step::FailObject { after }),
        1 => (0..2u32, prop::collection::vec(size(), 8)).prop_map(|(after, sizes)| Step::FailFrames { after, sizes }),
    ]
}

struct Model {
    pool: Pool,
    objects: BTreeMap<Handle, Vec<u8>>,
    stamp: u64,
    /// Freed slots of inherited zspages are not free ones.
    has_inherited: bool,
}

impl Model {
    fn new(chain: usize, nodes: u8) -> Self {
        let pool = Pool::new(&Config { chain, nodes }).unwrap();
        Model { pool, objects: BTreeMap::new(), stamp: 0, has_inherited: false }
    }

    fn pick(&self, which: usize, count: usize) -> Vec<Handle> {
        let skip = which % self.objects.len().max(1);
        self.objects.keys().skip(skip).take(count).copied().collect()
    }

    fn free(&mut self, which: usize, count: usize) {
        let handles = self.pick(which, count);
        self.pool.free_bulk(&handles);
        handles.iter().for_each(|handle| drop(self.objects.remove(handle)));
    }

    fn malloc(&mut self, sizes: &[u32], nid: u8) -> Result<(), AllocError> {
        let mut handles = vec![Handle::DANGLING; sizes.len()];
        self.pool.malloc_bulk(sizes, nid, &mut handles)?;
        for (&handle, &size) in handles.iter().zip(sizes) {
            self.stamp += 1;
            assert_eq!(self.pool.len_of(handle), size as usize);
            let fresh = self.objects.insert(handle, content(self.stamp, size as usize));
            assert!(fresh.is_none(), "{handle:?} given out twice");
        }
        handles.iter().for_each(|&handle| self.pool.write(handle, &self.objects[&handle]));
        Ok(())
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Malloc { sizes, nid } => self.malloc(sizes, *nid).unwrap(),
            Step::Write { which, stamp } => {
                for handle in self.pick(*which, 1) {
                    let bytes = self.objects.get_mut(&handle).unwrap();
                    *bytes = content(*stamp, bytes.len());
                    self.pool.write(handle, bytes);
                }
            }
            Step::Read { which, count } => {
                let handles = self.pick(*which, *count);
                let guards: Vec<_> = handles.iter().map(|handle| self.pool.read(*handle)).collect();
                for (handle, guard) in handles.iter().zip(&guards) {
                    assert_eq!(guard.bytes(), self.objects[handle]);
                }
            }
            Step::Free { which, count } => self.free(*which, *count),
            Step::Compact => {
                let before = self.pool.bytes();
                let pages = self.pool.compact();
                assert_eq!(before.saturating_sub(self.pool.bytes()), pages * 4096);
            }
            Step::Inherit => {
                self.pool.inherit();
                self.has_inherited = true;
                // Some processes have lost their relatives at the next step.
                (0..self.stamp % 16).for_each(|_| self.pool.note_relatives(false));
            }
            Step::FailObject { after } => {
                self.pool.fail_object_after(Some(*after));
                assert_eq!(self.malloc(&[700; 9], 0), Err(AllocError::NoMemory));
                self.pool.fail_object_after(None);
            }
            Step::FailFrames { after, sizes } => {
                self.pool.fail_frames_after(Some(*after));
                match self.malloc(sizes, 0) {
                    Ok(()) | Err(AllocError::NoMemory) => {}
                    Err(other) => panic!("{other}"),
                }
                self.pool.compact();
                self.pool.fail_frames_after(None);
            }
        }
        self.check_figures();
    }

    fn check_figures(&self) {
        let stats = self.pool.stats();
        let payload: usize = self.objects.values().map(Vec::len).sum();
        assert_eq!(stats.objects, self.objects.len() as u64);
        assert_eq!(stats.payload_bytes, payload as u64);
        assert!(stats.pool_bytes >= stats.payload_bytes);
        let rows: Vec<_> = self.pool.class_stats().collect();
        assert_eq!(rows.iter().map(|row| row.objects).sum::<u64>(), stats.objects);
        assert_eq!(rows.iter().map(|row| row.zspages).sum::<u64>(), stats.class_zspages);
        assert!(rows.iter().map(|row| row.objects_in_class).sum::<u64>() <= stats.objects);
        for row in rows {
            let slots = row.zspages * u64::from(row.geometry.slots);
            let known = row.objects_in_class + row.free_slots;
            assert!(known == slots || self.has_inherited && known < slots, "{row:?}");
        }
    }

    /// Checks all bytes, frees everything, and checks that nothing is left.
    fn finish(mut self) {
        for (&handle, bytes) in &self.objects {
            assert_eq!(self.pool.read(handle).bytes(), &bytes[..]);
        }
        let handles: Vec<Handle> = std::mem::take(&mut self.objects).into_keys().collect();
        self.pool.free_bulk(&handles);
        self.check_figures();
        self.pool.compact();
        let stats = self.pool.stats();
        assert_eq!((stats.class_zspages, stats.mixed_zspages, stats.mixed_dead_bytes), (0, 0, 0));
        assert_eq!(self.pool.bytes(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pool_is_a_map_from_handles_to_bytes(
        chain in 4..=16usize,
        nodes in 1..4u8,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(chain, nodes);
        for step in &steps {
            model.apply(step);
        }
        model.finish();
    }
}

/// Long enough for classes to have zspages of their own, unlike the short runs above.
#[test]
fn a_large_pool_is_a_map_too() {
    for chain in [4, 8, 16] {
        let mut model = Model::new(chain, 2);
        let mut random = Random::new(chain as u64);
        // Few sizes, so that their classes fill.
        let sizes: Vec<u32> = (0..24).map(|_| random.size()).collect();
        for round in 0..4000 {
            let batch: Vec<u32> = (0..8).map(|_| sizes[random.below(sizes.len())]).collect();
            model.malloc(&batch, (round % 2) as u8).unwrap();
            if model.objects.len() > 6000 || random.below(4) == 0 {
                model.free(random.next() as usize, 1 + random.below(40));
            }
            if random.below(400) == 0 {
                model.apply(&Step::Compact);
            }
        }
        assert!(model.pool.stats().class_zspages > 0, "the test is about these");
        model.check_figures();
        model.finish();
    }
}
