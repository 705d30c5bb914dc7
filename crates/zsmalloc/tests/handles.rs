//! Numbers that are not handles: using them panics and does no damage.

mod common;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::panic::{catch_unwind, AssertUnwindSafe};

use common::content;
use proptest::prelude::*;
use zsmalloc::{Config, Handle, Pool};

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 1..3000u32,
        2 => any::<u32>().prop_map(|number| number.max(1)),
        1 => (0u32..32, 0u32..3).prop_map(|(bit, off)| (1u32 << bit).wrapping_add(off).wrapping_sub(1).max(1)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_number_is_a_live_objects_or_a_panic(
        sizes in prop::collection::vec(1u32..4096, 1..120),
        freed in prop::collection::vec(any::<bool>(), 120),
        numbers in prop::collection::vec(number(), 1..60),
    ) {
        let pool = Pool::new(&Config { chain: 4, nodes: 1 }).unwrap();
        let mut objects = BTreeMap::new();
        for (stamp, size) in sizes.iter().enumerate() {
            let handle = pool.malloc(*size, 0).unwrap();
            let bytes = content(stamp as u64, *size as usize);
            pool.write(handle, &bytes);
            objects.insert(handle, bytes);
        }
        let gone: Vec<Handle> =
            objects.keys().zip(&freed).filter(|(_, freed)| **freed).map(|(handle, _)| *handle).collect();
        for handle in gone {
            pool.free_bulk(&[handle]);
            objects.remove(&handle);
        }
        // Hides the messages of expected panics.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let outcomes: Vec<_> = numbers
            .iter()
            .map(|number| {
                let handle = Handle::from_raw(NonZeroU32::new(*number).unwrap());
                let read = catch_unwind(AssertUnwindSafe(|| pool.read(handle).bytes().to_vec())).ok();
                let len = catch_unwind(AssertUnwindSafe(|| pool.len_of(handle))).ok();
                let wrote = objects.contains_key(&handle)
                    || catch_unwind(AssertUnwindSafe(|| pool.write(handle, &[1]))).is_ok();
                (handle, read, len, wrote)
            })
            .collect();
        std::panic::set_hook(hook);
        for (handle, read, len, wrote) in outcomes {
            let expected = objects.get(&handle);
            prop_assert_eq!(len, expected.map(Vec::len), "{:?}", handle);
            prop_assert_eq!(read.as_ref(), expected, "{:?}", handle);
            prop_assert_eq!(wrote, expected.is_some(), "{:?}", handle);
        }
        for (handle, bytes) in &objects {
            let guard = pool.read(*handle);
            prop_assert_eq!(guard.bytes(), &bytes[..]);
        }
        pool.free_bulk(&objects.keys().copied().collect::<Vec<_>>());
        prop_assert_eq!(pool.stats().payload_bytes, 0);
    }
}
