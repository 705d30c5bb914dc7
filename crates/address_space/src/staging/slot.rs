//! Slots and extents off every list, as values that only move.
//!
//! A thread that takes a slot owns it until it hands it on. A number instead, as the page table has
//! it, could be given back twice, so that two threads fill one slot, or by neither. So a slot can
//! be neither copied nor dropped unused, and its type says which calls take it:
//!
//! ```text
//!  EmptySlot --filled--> QueuedSlot --done--> ReadySlot
//!      ^--------------------------------------- give
//! ```
//!
//! A slot given back twice does not compile:
//!
//! ```compile_fail,E0382
//! fn twice(staging: &address_space::Staging, slot: address_space::ReadySlot) {
//!     staging.give(slot);
//!     staging.give(slot);
//! }
//! ```
//!
//! and neither, with warnings denied, does a lost one:
//!
//! ```compile_fail
//! #![deny(unused_must_use)]
//! fn lose(staging: &address_space::Staging) -> Option<()> {
//!     staging.take_ready(1)?;
//!     None
//! }
//! ```

use std::marker::PhantomData;

use crate::units::{SlotNumber, EXTENT_SLOTS};

/// State of a slot without pages.
#[derive(Debug, PartialEq, Eq)]
pub enum Empty {}
/// State of a slot with pages that are, or were, a block's.
#[derive(Debug, PartialEq, Eq)]
pub enum Queued {}
/// State of a slot whose frames are free.
#[derive(Debug, PartialEq, Eq)]
pub enum Ready {}

/// States in which a slot may be given back.
pub trait Free {}
impl Free for Empty {}
impl Free for Ready {}

/// A slot off every list.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is dropped is lost"]
pub struct Slot<State>(SlotNumber, PhantomData<State>);

/// A slot without pages.
pub type EmptySlot = Slot<Empty>;
/// A slot with pages that wait for compression.
pub type QueuedSlot = Slot<Queued>;
/// A slot whose frames are free.
pub type ReadySlot = Slot<Ready>;

impl<State> Slot<State> {
    pub(super) fn new(number: SlotNumber) -> Self {
        Slot(number, PhantomData)
    }

    /// Its number, for the record of its block.
    pub fn number(&self) -> SlotNumber {
        self.0
    }
}

impl EmptySlot {
    /// Pages of a block have moved in.
    pub(crate) fn filled(self) -> QueuedSlot {
        Slot::new(self.0)
    }

    /// Frames were made in it.
    pub(crate) fn with_frames(self) -> ReadySlot {
        Slot::new(self.0)
    }
}

impl QueuedSlot {
    /// Its pages are stored, in place or not needed.
    pub fn done(self) -> ReadySlot {
        Slot::new(self.0)
    }
}

/// Eight adjacent slots off every list.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an extent that is dropped is lost"]
pub struct Extent<State>(SlotNumber, PhantomData<State>);

impl<State> Extent<State> {
    pub(super) fn new(first: SlotNumber) -> Self {
        Extent(first, PhantomData)
    }

    pub(crate) fn first(&self) -> SlotNumber {
        self.0
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = SlotNumber> + use<State> {
        let first = self.0;
        (0..EXTENT_SLOTS).map(move |index| first.behind(index))
    }

    pub(crate) fn slots(self) -> impl Iterator<Item = Slot<State>> {
        self.numbers().map(Slot::new)
    }
}

impl Extent<Empty> {
    pub(super) fn with_frames(self) -> Extent<Ready> {
        Extent::new(self.0)
    }
}
