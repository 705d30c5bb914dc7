//! Readers survive any data that a process writes into the ledger or sends to the supervisor.

use std::mem::size_of;

use proptest::prelude::*;

use crate::board::Board;
use crate::memory::Memory;
use crate::wire::{self, Packet};
use crate::{
    percentile_ns, Counter, Keeper, Ledger, Settings, Sight, Snapshot, Tree, BUCKETS, FORMS_MAX, SLOTS,
};

fn settings() -> Settings {
    Settings {
        budget_bytes: 1 << 30,
        compressor: "lz4".into(),
        forms: vec!["lz4".into(), "raw".into()],
        ..Settings::default()
    }
}

/// Words to which sums and products are sensitive, and arbitrary words.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => any::<u64>(),
        1 => Just(u64::MAX),
        1 => Just(u64::MAX / 4096),
        1 => 0..2000u64,
        1 => any::<[u8; 8]>().prop_map(|bytes| u64::from_le_bytes(bytes.map(|byte| byte % 3 * b','))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ledger_of_any_words_can_be_read(
        pattern in prop::collection::vec(word(), 1..40),
        changes in prop::collection::vec((0..size_of::<Memory>() / 8, word()), 0..60),
    ) {
        let mut keeper = Keeper::create(&settings(), 1).unwrap();
        let ledger = Ledger::map(keeper.board_file(), keeper.ledger_file()).unwrap();
        let index = keeper.claim(7).unwrap();
        let words = ledger.memory.as_ptr().cast::<u64>();
        // The sum and the first slots, then single words anywhere.
        for (at, word) in (0..2000).zip(pattern.iter().cycle().copied()).chain(changes) {
            // SAFETY: within the mapping, which is plain atomics; this test has one thread.
            unsafe { words.add(at).write_volatile(word) };
        }

        let mut tree = Tree::default();
        tree.add(ledger);
        let mut snapshot = Snapshot::default();
        snapshot.add(Sight::read(keeper.board_file()).unwrap(), keeper.ledger_file()).unwrap();
        prop_assert_eq!(ledger.live().count(), 1);
        prop_assert_eq!(snapshot.live().count(), 1);
        prop_assert_eq!(snapshot.settings(), settings());
        prop_assert_eq!(snapshot.forms(), tree.forms());
        // As reports sum up figures.
        let _: u64 = tree.forms().values().sum();
        let counts = tree.fault_counts();
        for fraction in [0.0, 0.5, 0.999, 1.0] {
            prop_assert!(percentile_ns(&counts, fraction) < 1 << 41);
        }
        for counter in [Counter::ZswpOut, Counter::Forks] {
            prop_assert_eq!(tree.sum(counter), snapshot.sum(counter));
        }
        for live in tree.live() {
            prop_assert!(live.slot.wanted_bytes() >= live.slot.own_stored_pages());
        }
        prop_assert!(ledger.pagers() <= SLOTS);
        // Sums of the total fit a word.
        prop_assert!(ledger.total_bytes() < u64::MAX / 4);
        // The supervisor corrects the sum, and thereby the relatives' view.
        for _ in 0..5 {
            let sum = keeper.audit();
            prop_assert!(sum < u64::MAX / 4);
        }
        prop_assert_eq!(ledger.total_bytes(), keeper.audit());
        // As the supervisor treats the slot of a process that has ended.
        ledger.publish(index, 5, 6, 7, 8);
        ledger.slot(index).add(Counter::Faults, u64::MAX);
        ledger.slot(index).faults().record(u64::MAX);
        keeper.release(index);
        prop_assert_eq!(ledger.slot(index).resident_bytes(), 0);
        prop_assert_eq!(keeper.claim(8), Some(index));
        prop_assert_eq!(ledger.live().next().map(|(index, pid, _)| (index, pid)), Some((index, 8)));
    }

    /// A board that an observer finds may come from any process.
    #[test]
    fn a_board_of_any_words_can_be_read(
        changes in prop::collection::vec((1..size_of::<Board>() / 8, word()), 0..200),
    ) {
        let keeper = Keeper::create(&settings(), 1).unwrap();
        let words = keeper.ledger().board.as_ptr().cast::<u64>();
        for (at, word) in changes {
            // SAFETY: within the supervisor's mapping of plain atomics; this test has one thread.
            unsafe { words.add(at).write_volatile(word) };
        }
        let mut snapshot = Snapshot::default();
        snapshot.add(Sight::read(keeper.board_file()).unwrap(), keeper.ledger_file()).unwrap();
        prop_assert!(snapshot.live().count() <= SLOTS);
        prop_assert!(snapshot.forms().len() <= FORMS_MAX);
        prop_assert!(snapshot.total_bytes() < u64::MAX / 4);
        let _ = (snapshot.settings(), snapshot.sum(Counter::Faults), snapshot.fault_counts());
    }

    #[test]
    fn percentiles_of_any_counts_lie_in_a_bucket(
        counts in prop::collection::vec(word(), BUCKETS),
        fraction in 0.0f64..=1.0,
    ) {
        let counts: [u64; BUCKETS] = counts.try_into().unwrap();
        prop_assert!((8..1 << 41).contains(&percentile_ns(&counts, fraction)));
    }

    #[test]
    fn a_packet_of_any_bytes_has_a_kind_or_none(bytes in prop::collection::vec(any::<u8>(), size_of::<Packet>())) {
        // SAFETY: a packet is plain numbers without invalid values, and `bytes` has its size.
        let packet = unsafe { bytes.as_ptr().cast::<Packet>().read_unaligned() };
        prop_assert!(packet.text().len() <= wire::TEXT_MAX);
        let kind = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
        prop_assert_eq!(packet.kind().map(|kind| kind as u32), (1..=wire::KINDS.len() as u32).contains(&kind).then_some(kind));
    }

    #[test]
    fn any_text_fits_a_packet_or_is_cut(text in "\\PC{0,600}") {
        let packet = Packet::with_text(wire::Kind::Say, &text);
        prop_assert!(text.as_bytes().starts_with(packet.text()));
        prop_assert_eq!(packet.text().len(), text.len().min(wire::TEXT_MAX));
    }

    #[test]
    fn any_name_is_elsewhere_or_not(name in prop::collection::vec(any::<u8>(), 0..200)) {
        // Without a final hex word the namespace is unknown.
        let known = name.rsplit(|byte| *byte == b'-').next().unwrap();
        let known = known.strip_prefix(b"+").unwrap_or(known).iter().all(u8::is_ascii_hexdigit);
        prop_assert!(known || !wire::is_elsewhere(&name));
    }
}
