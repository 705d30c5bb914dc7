//! The next action of a reclaim worker, as a pure function of figures.
//!
//! ```text
//!   bytes  0 ............ low - headroom ............ low ............ budget
//!            rest,           keep ready pages           move pages out until the
//!            or extents      up to the reserve          total is below `low` again
//!            for runs
//! ```
//!
//! Threads that bring in *runs* of pages need whole extents. Ready pages are frames for pages to
//! come in: enough of them keep faults from waiting, more take memory from the program.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Resident bytes of the tree.
    pub total_bytes: u64,
    /// The low water mark, above which pages move out.
    pub low_bytes: u64,
    /// Bytes below the low water mark within which ready pages are kept.
    pub headroom_bytes: u64,
    pub ready_pages: usize,
    /// Ready pages kept for single faults.
    pub reserve_pages: usize,
    /// Set while runs of pages come in.
    pub runs: Option<RunFigures>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunFigures {
    /// Ready pages left for runs when frames go back to the system.
    pub left_pages: usize,
    /// Too many frames are scattered although blocks leave by the extent, and no extent has room.
    pub is_fragmented: bool,
    /// Fewer pages are ready in whole extents than runs need.
    pub lacks_extents: bool,
    pub queued_slots: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    GiveBack,
    /// Compress the oldest slots, which makes extents ready.
    Compress,
    MakeExtent,
    /// Move pages out, or compress some.
    Reclaim,
    Rest,
}

pub(crate) fn next_action(figures: &Figures) -> Action {
    let Figures { total_bytes, low_bytes, headroom_bytes, ready_pages, reserve_pages, runs } = *figures;
    let is_above_low = total_bytes > low_bytes;
    let raised_bytes = total_bytes.saturating_add(headroom_bytes);
    // Runs use any number of pages, but the pool grows: above the low mark, return memory first.
    let enough_pages = runs.map_or(reserve_pages, |runs| runs.left_pages);
    if runs.is_some_and(|runs| runs.is_fragmented) || is_above_low && ready_pages > enough_pages {
        return Action::GiveBack;
    }
    if let Some(runs) = runs.filter(|runs| runs.lacks_extents) {
        if runs.queued_slots > 0 {
            return Action::Compress;
        }
        // Memory grows by runs of first touches: make frames while the program uses the last.
        if raised_bytes < low_bytes {
            return Action::MakeExtent;
        }
    }
    if is_above_low || ready_pages < reserve_pages && raised_bytes > low_bytes {
        return Action::Reclaim;
    }
    Action::Rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOW: u64 = 1000 << 20;
    const HEADROOM: u64 = 10 << 20;

    fn figures(total_bytes: u64, ready_pages: usize, runs: Option<RunFigures>) -> Figures {
        let (low_bytes, headroom_bytes, reserve_pages) = (LOW, HEADROOM, 96);
        Figures { total_bytes, low_bytes, headroom_bytes, ready_pages, reserve_pages, runs }
    }

    const CALM: RunFigures =
        RunFigures { left_pages: 544, is_fragmented: false, lacks_extents: false, queued_slots: 0 };

    #[test]
    fn without_runs_the_low_mark_and_the_reserve_decide() {
        for (total_bytes, ready_pages, action) in [
            (0, 0, Action::Rest),
            (LOW - HEADROOM, 0, Action::Rest),
            (LOW - HEADROOM + 1, 0, Action::Reclaim),
            (LOW - HEADROOM + 1, 96, Action::Rest),
            (LOW, 95, Action::Reclaim),
            (LOW, 5000, Action::Rest),
            (LOW + 1, 0, Action::Reclaim),
            (LOW + 1, 96, Action::Reclaim),
            (LOW + 1, 97, Action::GiveBack),
            (u64::MAX, 0, Action::Reclaim),
        ] {
            assert_eq!(
                next_action(&figures(total_bytes, ready_pages, None)),
                action,
                "{total_bytes} {ready_pages}"
            );
        }
    }

    #[test]
    fn runs_get_extents_where_there_is_room_for_them() {
        let lacking = RunFigures { lacks_extents: true, ..CALM };
        let queued = RunFigures { queued_slots: 1, ..lacking };
        for (total_bytes, ready_pages, runs, action) in [
            (0, 0, CALM, Action::Rest),
            (0, 0, lacking, Action::MakeExtent),
            (0, 0, queued, Action::Compress),
            (LOW - HEADROOM, 0, lacking, Action::Rest),
            (LOW, 0, lacking, Action::Reclaim),
            (LOW + 1, 0, queued, Action::Compress),
            (LOW + 1, 545, queued, Action::GiveBack),
            (LOW + 1, 544, CALM, Action::Reclaim),
            (0, 0, RunFigures { is_fragmented: true, ..queued }, Action::GiveBack),
        ] {
            let case = figures(total_bytes, ready_pages, Some(runs));
            assert_eq!(next_action(&case), action, "{case:?}");
        }
    }

    fn runs() -> impl Strategy<Value = Option<RunFigures>> {
        let any = (0..2000usize, any::<bool>(), any::<bool>(), 0..3usize).prop_map(
            |(left_pages, is_fragmented, lacks_extents, queued_slots)| RunFigures {
                left_pages,
                is_fragmented,
                lacks_extents,
                queued_slots,
            },
        );
        prop::option::of(any)
    }

    proptest! {
        #[test]
        fn every_figure_leads_to_an_action_that_can_make_progress(
            total_bytes in prop_oneof![any::<u64>(), 0..4 * LOW],
            low_bytes in prop_oneof![any::<u64>(), 0..4 * LOW],
            headroom_bytes in prop_oneof![any::<u64>(), 0..LOW],
            ready_pages in 0..4000usize,
            reserve_pages in 0..4000usize,
            runs in runs(),
        ) {
            let figures = Figures { total_bytes, low_bytes, headroom_bytes, ready_pages, reserve_pages, runs };
            match next_action(&figures) {
                Action::Rest => prop_assert!(total_bytes <= low_bytes, "above the low mark something happens"),
                Action::GiveBack => {
                    let is_fragmented = runs.is_some_and(|runs| runs.is_fragmented);
                    prop_assert!(is_fragmented || total_bytes > low_bytes && ready_pages > 0);
                }
                Action::Compress => prop_assert!(runs.is_some_and(|runs| runs.queued_slots > 0)),
                Action::MakeExtent => prop_assert!(total_bytes < low_bytes, "memory grows below the low mark only"),
                Action::Reclaim => prop_assert!(total_bytes > low_bytes || ready_pages < reserve_pages),
            }
        }

        #[test]
        fn more_use_never_turns_reclaim_into_rest(
            total_bytes in 0..2 * LOW, more_bytes in 0..LOW, ready_pages in 0..4000usize, runs in runs(),
        ) {
            let before = next_action(&figures(total_bytes, ready_pages, runs));
            let after = next_action(&figures(total_bytes + more_bytes, ready_pages, runs));
            prop_assert!(!(before == Action::Reclaim && after == Action::Rest));
        }
    }
}
