//! The place of a fork among the parent's concurrent calls that change mappings.
//!
//! The kernel orders these calls by a lock and reports each after releasing it. So the report of a
//! fork may be read after those of later calls. Then the table says where pages are now, but the
//! child has them where they were at the fork.
//!
//! ```text
//!   reports read:   move a -> b    move c -> d    FORK        the child was made here, or there, or before both
//!                 ^              ^              ^
//! ```
//!
//! Whenever no call is under way, everything before that moment precedes every later fork and is
//! dropped ([`super::reorder`]). The child's mappings decide the rest. Nothing is registered
//! while a call is under way. So if the source of a move is registered in the child, the mapping
//! has not moved yet or another of these moves brought it there; and a registered range that was
//! unmapped has not been unmapped yet. The fork stands where all calls together best explain the
//! child's registrations: page by page, an unrelated mapping at an old place would be taken for the
//! page's own.

use sys::userfaultfd::Message;
use sys::PAGE_SIZE;

use crate::space::descriptor::Registration;
use crate::units::PageNumber;

/// The reports whose order against a fork is uncertain, and the fork's place among them.
#[derive(Debug, Default)]
pub struct ForkPoint {
    reports: Vec<Message>,
    /// Number of reports that the table knows.
    applied: usize,
    /// Number of reports before the fork.
    before: usize,
}

enum Touch {
    Arrives,
    Moves,
    Goes,
}

fn touch(report: Message, at: PageNumber) -> Option<Touch> {
    let at = at.address();
    match report {
        Message::Remap { to, len, .. } if (to..to + len).contains(&at) => Some(Touch::Arrives),
        Message::Remap { from, len, .. } if (from..from + len).contains(&at) => Some(Touch::Moves),
        Message::Unmap { start, end } if (start..end).contains(&at) => Some(Touch::Goes),
        _ => None,
    }
}

/// The place of a page after a report, `None` if another mapping is there now. An unmapped page
/// keeps its place: placing it shows best whether the fork came before.
pub(crate) fn redo(report: Message, page: PageNumber) -> Option<PageNumber> {
    let at = page.address();
    match report {
        Message::Remap { from, to, len } if (from..from + len).contains(&at) => {
            Some(PageNumber::of(at - from + to))
        }
        Message::Remap { to, len, .. } if (to..to + len).contains(&at) => None,
        _ => Some(page),
    }
}

/// The place of a page before a report, `None` if another mapping was there.
pub(crate) fn undo(report: Message, page: PageNumber) -> Option<PageNumber> {
    let at = page.address();
    match report {
        Message::Remap { from, to, len } if (to..to + len).contains(&at) => {
            Some(PageNumber::of(at - to + from))
        }
        Message::Remap { from, len, .. } if (from..from + len).contains(&at) => None,
        _ => Some(page),
    }
}

impl ForkPoint {
    /// Finds the fork's place. `reports` are in order, and the table knows the first `applied`.
    /// `registration` returns what the child had at an address when it was made.
    pub fn find(
        reports: Vec<Message>,
        applied: usize,
        mut registration: impl FnMut(PageNumber) -> Registration,
    ) -> Self {
        let mut found = Vec::new();
        for report in &reports {
            let ends = match *report {
                Message::Remap { from, to, .. } => [from, to],
                Message::Unmap { start, end } => [start, end - PAGE_SIZE],
                _ => continue,
            };
            found.extend(ends.into_iter().map(PageNumber::of).filter_map(|at| match registration(at) {
                Registration::Registered => Some((at, true)),
                Registration::Unregistered => Some((at, false)),
                Registration::Changing => None,
            }));
        }
        let misses = |before: usize| {
            let (mut sure, mut likely) = (0, 0);
            for (at, found) in &found {
                match expected(&reports, before, *at) {
                    Expected::Surely(it) => sure += usize::from(it != *found),
                    Expected::Likely(it) => likely += usize::from(it != *found),
                    Expected::Anything => {}
                }
            }
            (sure, likely)
        };
        // Between equals, prefer the table's place, then the later: placing nothing is harmless.
        let rank = |before: usize| (misses(before), before != applied, usize::MAX - before);
        let before = (0..=reports.len()).min_by_key(|before| rank(*before)).unwrap_or(applied);
        ForkPoint { reports, applied, before }
    }

    /// Where the child had, when it was made, the page that the table has as `at`.
    pub fn in_child(&self, at: PageNumber) -> Option<PageNumber> {
        match self.before >= self.applied {
            true => self.forth(self.applied, self.before, at),
            false => self.back(self.before, self.applied, at),
        }
    }

    /// Where the table has the page that the child had as `at` when it was made.
    pub fn in_table(&self, at: PageNumber) -> Option<PageNumber> {
        match self.before >= self.applied {
            true => self.back(self.applied, self.before, at),
            false => self.forth(self.before, self.applied, at),
        }
    }

    fn forth(&self, first: usize, end: usize, at: PageNumber) -> Option<PageNumber> {
        self.reports[first..end].iter().try_fold(at, |at, report| redo(*report, at))
    }

    fn back(&self, first: usize, end: usize, at: PageNumber) -> Option<PageNumber> {
        self.reports[first..end].iter().rev().try_fold(at, |at, report| undo(*report, at))
    }
}

enum Expected {
    Surely(bool),
    /// Part of an unmapped range. The kernel says only that some of the range was registered.
    Likely(bool),
    Anything,
}

fn expected(reports: &[Message], before: usize, at: PageNumber) -> Expected {
    let (earlier, later) = reports.split_at(before);
    match earlier.iter().rev().find_map(|report| touch(*report, at)) {
        Some(Touch::Arrives) => return Expected::Surely(true),
        Some(Touch::Moves | Touch::Goes) => return Expected::Surely(false),
        None => {}
    }
    // A range that leaves was there. The target of a move may have replaced something.
    match later.iter().find_map(|report| touch(*report, at)) {
        Some(Touch::Moves) => Expected::Surely(true),
        Some(Touch::Goes) => Expected::Likely(true),
        Some(Touch::Arrives) | None => Expected::Anything,
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const PLACES: usize = 6;
    const LEN: usize = 4 * sys::PAGE_SIZE;

    fn address(place: usize) -> usize {
        (place + 1) * 0x10_0000
    }

    fn page(place: usize) -> PageNumber {
        PageNumber::of(address(place))
    }

    /// A mapping of the model: by place, its name and whether it is registered.
    type Space = BTreeMap<usize, (usize, bool)>;

    /// A thread's call. Calls run one after another, and nothing gets registered in between.
    #[derive(Debug, Clone, Copy)]
    enum Call {
        Move(usize, usize),
        Unmap(usize),
        Map(usize),
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let place = 0..PLACES;
        let call = prop_oneof![
            4 => (place.clone(), place.clone()).prop_map(|(from, to)| Call::Move(from, to)),
            2 => place.clone().prop_map(Call::Unmap),
            2 => place.prop_map(Call::Map),
        ];
        proptest::collection::vec(call, 0..7)
    }

    fn registration(is_registered: bool) -> Registration {
        match is_registered {
            true => Registration::Registered,
            false => Registration::Unregistered,
        }
    }

    /// Executes a call, and returns its reports, if the range is registered.
    fn step(space: &mut Space, call: Call, name: usize) -> Vec<Message> {
        let unmap = |space: &mut Space, place: usize| {
            let gone = space.remove(&place);
            let is_reported = gone.is_some_and(|(_, is_registered)| is_registered);
            let (start, end) = (address(place), address(place) + LEN);
            is_reported.then_some(Message::Unmap { start, end })
        };
        match call {
            Call::Map(place) => {
                space.entry(place).or_insert((name, false));
                Vec::new()
            }
            Call::Unmap(place) => unmap(space, place).into_iter().collect(),
            Call::Move(from, to) if from != to && space.contains_key(&from) => {
                let mut reports: Vec<Message> = unmap(space, to).into_iter().collect();
                let moved = space.remove(&from).unwrap();
                space.insert(to, moved);
                if moved.1 {
                    let (start, len) = (address(from), LEN);
                    reports.push(Message::Remap { from: start, to: address(to), len });
                    reports.push(Message::Unmap { start, end: start + len });
                }
                reports
            }
            Call::Move(..) => Vec::new(),
        }
    }

    fn places(space: &Space) -> BTreeMap<usize, usize> {
        space
            .iter()
            .filter(|(_, (_, is_registered))| *is_registered)
            .map(|(at, (who, _))| (*who, *at))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// Wherever the fork stands and however many reports the table knows, each page of the
        /// table goes where the child has it, or nowhere. Excluded: the child looks the same at two
        /// times, as after a swap of two mappings.
        #[test]
        fn no_page_goes_to_another_mapping(
            start in proptest::collection::vec(prop_oneof![Just(None), Just(Some(true))], PLACES),
            calls in calls(), fork in 0usize..8, applied in 0usize..8,
        ) {
            let mut space: Space = start.iter().enumerate()
                .filter_map(|(place, is)| is.map(|is| (place, (place, is)))).collect();
            let mut reports = Vec::new();
            let mut history = vec![(0, space.clone())];
            for (number, call) in calls.iter().enumerate() {
                reports.extend(step(&mut space, *call, 100 + number));
                history.push((reports.len(), space.clone()));
            }
            let (_, child) = &history[fork.min(history.len() - 1)];
            let (applied, table) = &history[applied.min(history.len() - 1)];
            let look = |space: &Space| places(space).into_values().collect::<std::collections::BTreeSet<_>>();
            let alike = history.iter().filter(|(_, other)| look(other) == look(child));
            let is_ambiguous = alike.clone().any(|(_, other)| places(other) != places(child));
            prop_assume!(!is_ambiguous);

            let is_registered = |at: PageNumber| {
                look(child).iter().any(|place| (page(*place)..page(*place) + 4).contains(&at))
            };
            let point = ForkPoint::find(reports, *applied, |at| registration(is_registered(at)));
            let (in_child, in_table) = (places(child), places(table));
            for (who, place) in &in_table {
                let put = point.in_child(page(*place) + 2);
                let right = in_child.get(who).map(|place| page(*place) + 2);
                let is_harmless = put.is_none_or(|put| !is_registered(put));
                prop_assert!(put == right || right.is_none() && is_harmless,
                    "{who} at {place}: put at {put:?}, was at {right:?}: {point:x?}");
            }
            for (who, place) in &in_child {
                let from = point.in_table(page(*place));
                let right = in_table.get(who).map(|place| page(*place));
                let is_nothing = from.is_none_or(|from| !in_table.values().any(|place| page(*place) == from));
                prop_assert!(from == right || right.is_none() && is_nothing,
                    "{who} at {place}: from {from:?}, is at {right:?}: {point:x?}");
            }
        }
    }

    /// Regression: a page had moved away, and its new place was unmapped just before the fork. It
    /// was placed into a new mapping at its old address.
    #[test]
    fn a_page_whose_place_was_unmapped_does_not_return_to_its_former_place() {
        let (from, to) = (address(0), address(1));
        let reports = vec![Message::Remap { from, to, len: LEN }];
        let point = ForkPoint::find(Vec::new(), 0, |_| unreachable!());
        assert_eq!(point.in_child(page(1)), Some(page(1)));
        // Not settled: a new mapping cannot be registered yet.
        let point = ForkPoint::find(reports, 1, |_| Registration::Unregistered);
        assert_eq!(point.in_child(page(1)), Some(page(1)));
    }

    fn moved(from: usize, to: usize) -> [Message; 2] {
        let (from, to) = (address(from), address(to));
        // The kernel reports both.
        [Message::Remap { from, to, len: LEN }, Message::Unmap { start: from, end: from + LEN }]
    }

    /// Regression: three moves end where the first began, so the child differs before and after
    /// them only at the unmapped place. That was ignored, and a page went to another mapping.
    #[test]
    fn unmapped_places_count_in_finding_the_fork() {
        let mut reports = vec![Message::Unmap { start: address(5), end: address(5) + LEN }];
        reports.extend([moved(3, 1), moved(4, 3), moved(1, 4)].concat());
        let child = [3, 4, 5].map(page);
        let point = ForkPoint::find(reports, 3, |at| {
            registration(child.iter().any(|place| (*place..*place + 4).contains(&at)))
        });
        assert_eq!(point.in_child(page(1)), Some(page(3)));
        assert_eq!(point.in_child(page(4)), Some(page(4)));
        assert_eq!(point.in_table(page(3)), Some(page(1)));
    }

    /// The ends of an unmapped range may be unregistered, so the moves say more.
    #[test]
    fn the_ends_of_an_unmapped_range_say_less_than_a_move() {
        let mut reports = vec![Message::Unmap { start: address(2), end: address(5) }];
        reports.extend(moved(0, 1));
        let had =
            |at| registration([0, 3].into_iter().any(|place| (page(place)..page(place) + 4).contains(&at)));
        let point = ForkPoint::find(reports, 3, had);
        assert_eq!(point.in_child(page(1)), Some(page(0)));
    }
}
