//! Whatever a process of the tree writes into the ledger or says to the supervisor: those who read it go on.

use std::mem::size_of;
use std::os::fd::AsFd;

use proptest::prelude::*;

use crate::memory::Memory;
use crate::wire::{self, Packet};
use crate::{percentile_ns, Counter, Ledger, Settings, Snapshot, BUCKETS, FORMS_MAX, SLOTS};

/// Words that sums and products are sensitive to, and any others.
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
        slots_used in any::<u32>(),
    ) {
        let settings = Settings {
            budget_bytes: 1 << 30,
            folio_bytes: 65536,
            compressor: "lz4".into(),
            forms: vec!["lz4".into(), "raw".into()],
            verify: false,
            swap_bytes: 0,
        };
        let (ledger, file) = Ledger::create(&settings).unwrap();
        let index = ledger.claim(7).unwrap();
        let words = ledger.address().as_ptr().cast::<u64>();
        // All but the magic number, which is first: the head and the first slots, then single words anywhere.
        let front = (1..2000).zip(pattern.iter().cycle().copied());
        for (at, word) in front.chain(changes.into_iter().filter(|(at, _)| *at > 0)) {
            // SAFETY: within the mapping, which is plain atomics; this test has one thread.
            unsafe { words.add(at).write_volatile(word) };
        }
        if slots_used % 2 == 0 {
            // The supervisor's number, and how many slots were ever used.
            // SAFETY: as above.
            unsafe { words.add(3).write_volatile(u64::from(slots_used) << 32) };
        }

        ledger.note_peaks();
        let snapshot = Snapshot::read(file.as_fd()).unwrap();
        prop_assert!(ledger.live().count() <= SLOTS);
        prop_assert_eq!(snapshot.live().count(), ledger.live().count());
        prop_assert_eq!(snapshot.settings(), ledger.settings());
        prop_assert!(ledger.forms().len() <= FORMS_MAX);
        prop_assert_eq!(snapshot.forms(), ledger.forms());
        let counts = ledger.fault_counts();
        for fraction in [0.0, 0.5, 0.999, 1.0] {
            prop_assert!(percentile_ns(&counts, fraction) < 1 << 41);
        }
        for counter in [Counter::ZswpOut, Counter::Forks] {
            prop_assert_eq!(ledger.sum(counter), snapshot.sum(counter));
        }
        for (_, slot) in ledger.live() {
            prop_assert!(slot.wanted_bytes() >= slot.stored_pages());
        }
        // What the supervisor does with the slot of a process that has come and gone.
        ledger.publish(index, 5, 6, 7, 8);
        ledger.slot(index).add(Counter::Faults, u64::MAX);
        ledger.slot(index).faults().record(u64::MAX);
        ledger.release(index);
        prop_assert_eq!((ledger.slot(index).pid(), ledger.slot(index).resident_bytes()), (0, 0));
        while let Some(index) = ledger.claim(8).filter(|index| *index < 4) {
            prop_assert_eq!(ledger.slot(index).pid(), 8);
        }
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
        // SAFETY: a packet is plain numbers, of which any are valid, and there are as many bytes.
        let packet = unsafe { bytes.as_ptr().cast::<Packet>().read_unaligned() };
        prop_assert!(packet.text().len() <= wire::TEXT_MAX);
        let kind = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
        prop_assert_eq!(packet.kind().map(|kind| kind as u32), (1..=12).contains(&kind).then_some(kind));
    }

    #[test]
    fn any_text_fits_a_packet_or_is_cut(text in "\\PC{0,600}") {
        let packet = Packet::with_text(wire::Kind::Say, &text);
        prop_assert!(text.as_bytes().starts_with(packet.text()));
        prop_assert_eq!(packet.text().len(), text.len().min(wire::TEXT_MAX));
    }

    #[test]
    fn any_name_is_elsewhere_or_not(name in prop::collection::vec(any::<u8>(), 0..200)) {
        // Without a last word in hex nobody knows.
        let known = name.rsplit(|byte| *byte == b'-').next().unwrap();
        let known = known.strip_prefix(b"+").unwrap_or(known).iter().all(u8::is_ascii_hexdigit);
        prop_assert!(known || !wire::is_elsewhere(&name));
    }
}
