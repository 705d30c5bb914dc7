//! The zspages of one class on one node: equal slots, grouped by how full they are.
//!
//! New objects go to the fullest zspage with room, so that the emptiest can empty. A freed slot
//! keeps the number of the next freed slot in its first two bytes; slots that were never used are
//! not linked and their pages not touched.

use std::sync::atomic::{AtomicU32, Ordering};

use sys::PAGE_SIZE;

use crate::class::Geometry;
use crate::entry::FrameOffset;
use crate::faults::Faults;
use crate::frame::{kind, Field, Frame, Frames};
use crate::lock::Lock;
use crate::shard::Totals;
use crate::supply::{Supply, Taker};
use crate::table::Zero;

/// Groups of zspages with room, by sixths of their slots. Full zspages are on no list.
pub(crate) const GROUPS: usize = 6;
/// [`crate::frame::Frame::group`] of a full zspage: on no list.
const FULL: u8 = 0xff;
/// Group of a zspage that compaction empties: on no list, so it gets no new objects.
const SOURCE: u8 = 0xfe;
/// Group of a zspage, of a class or mixed, whose pages a forked process shares with relatives: on
/// no list, and freed slots are not linked, since any write would copy a page.
pub(crate) const INHERITED: u8 = 0xfd;
/// Group of an inherited zspage that compaction empties.
const SOURCE_INHERITED: u8 = 0xfc;

#[derive(Default)]
pub(crate) struct Lists {
    /// First zspage of each group, frame number + 1, emptiest group first.
    heads: [u32; GROUPS],
    /// Objects in the class's zspages.
    pub(crate) objects: u32,
}

#[derive(Default)]
pub(crate) struct ClassList {
    lists: Lock<Lists>,
    /// Free slots of the listed zspages. Written under the lock, read without it as a hint.
    room: AtomicU32,
    /// Zspages, full ones and sources included. As `room`.
    zspages: AtomicU32,
    /// 1 once the class has had a zspage: until then this page is unwritten and not resident.
    used: AtomicU32,
}

// SAFETY: a lock of zeroes is free, lists of zeroes are empty.
unsafe impl Zero for ClassList {}

/// Where the zspages of a list are, and their slots.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) node: u8,
    pub(crate) class: u16,
    pub(crate) geometry: Geometry,
}

impl At {
    /// Whether a frame is a zspage of this list, whose lock keeps it one.
    fn has(self, frame: &Frame) -> bool {
        frame.kind.get() == kind::CLASS + self.class && frame.node.get() == self.node
    }
}

/// The parts of the pool that its zspages use.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) frames: &'a Frames,
    pub(crate) supplies: &'a [Supply],
    pub(crate) faults: &'a Faults,
    pub(crate) totals: &'a Totals,
}

impl Ground<'_> {
    /// Takes a frame, of `node` if possible.
    pub(crate) fn take_frame(&self, node: u8, taker: Taker) -> Option<u32> {
        let own = usize::from(node);
        if let Some(frame) = self.supplies[own].take(self.frames, taker, self.faults) {
            return Some(frame);
        }
        let mut others = self.supplies.iter().enumerate().filter(|&(other, _)| other != own);
        others.find_map(|(_, supply)| supply.take(self.frames, taker, self.faults))
    }

    #[inline]
    pub(crate) fn reach(&self, frame: u32, end: usize) {
        self.home(frame).reach(self.frames, frame, end);
    }

    fn home(&self, frame: u32) -> &Supply {
        &self.supplies[usize::from(self.frames.get(frame).home.get())]
    }

    /// Gives back the pages of a zspage in use behind its byte `used`.
    pub(crate) fn trim_tail(&self, frame: u32, used: usize) {
        self.home(frame).trim_tail(self.frames, frame, used);
    }

    pub(crate) fn release_frame(&self, frame: u32) {
        self.home(frame).release(self.frames, frame);
    }
}

impl ClassList {
    /// Whether a zspage has room, as a hint.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.room.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn was_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn zspages(&self) -> u32 {
        self.zspages.load(Ordering::Relaxed)
    }

    pub(crate) fn room(&self) -> u32 {
        self.room.load(Ordering::Relaxed)
    }

    pub(crate) fn lists(&self) -> crate::lock::Locked<'_, Lists> {
        self.lists.lock()
    }

    /// Takes slots for as many of `places` as possible; if none has room, starts zspages up to
    /// `zspages_max` in all. Returns how many it took.
    pub(crate) fn allocate(
        &self,
        at: At,
        zspages_max: u64,
        places: &mut [FrameOffset],
        ground: Ground<'_>,
    ) -> usize {
        let mut lists = self.lists.lock();
        let mut done = 0;
        while done < places.len() {
            let fullest = lists.heads.iter().rev().find(|&&head| head != 0);
            let number = match fullest {
                Some(head) => head - 1,
                None if u64::from(self.zspages()) < zspages_max => {
                    let Some(number) = self.start(&mut lists, at, ground) else { break };
                    number
                }
                None => break,
            };
            let count = take_slots(number, at.geometry, &mut places[done..], ground);
            lists.objects += count as u32;
            self.room.set(self.room.get() - count as u32);
            regroup(&mut lists, number, at.geometry, ground.frames);
            done += count;
        }
        done
    }

    fn start(&self, lists: &mut Lists, at: At, ground: Ground<'_>) -> Option<u32> {
        let number = ground.take_frame(at.node, Taker::Allocation)?;
        let frame = ground.frames.get(number);
        // The frame's last zspage may have had a longer chain.
        ground.trim_tail(number, usize::from(at.geometry.pages) * PAGE_SIZE);
        frame.node.set(at.node);
        frame.kind.set(kind::CLASS + at.class);
        self.used.set(1);
        self.zspages.set(self.zspages.get() + 1);
        self.room.set(self.room.get() + u32::from(at.geometry.slots));
        link(lists, number, 0, ground.frames);
        Some(number)
    }

    /// Frees the slots at `places`, and a zspage with its last object.
    pub(crate) fn free(&self, places: &[FrameOffset], geometry: Geometry, ground: Ground<'_>) {
        let mut lists = self.lists.lock();
        places.iter().for_each(|at| self.free_one(&mut lists, *at, geometry, ground));
    }

    #[inline]
    fn free_one(&self, lists: &mut Lists, at: FrameOffset, geometry: Geometry, ground: Ground<'_>) {
        let frame = ground.frames.get(at.frame);
        let slot = u32::from(at.offset) / geometry.slot_bytes;
        debug_assert_eq!(place(at.frame, slot, geometry), at, "not the start of a slot");
        let (is_inherited, is_listed) = match frame.group.get() {
            INHERITED | SOURCE_INHERITED => (true, false),
            group => (false, group != SOURCE),
        };
        if !is_inherited {
            let address = ground.frames.address(at);
            // SAFETY: the slot's object is gone, and slots have at least 32 bytes.
            unsafe { address.cast::<u16>().write_unaligned(frame.freed.get()) };
            frame.freed.set(slot as u16 + 1);
        }
        let live = frame.live.get() - 1;
        frame.live.set(live);
        lists.objects -= 1;
        if is_listed {
            self.room.set(self.room.get() + 1);
        }
        if live > 0 {
            if is_listed {
                regroup(lists, at.frame, geometry, ground.frames);
            }
            return;
        }
        if is_listed {
            self.room.set(self.room.get() - u32::from(geometry.slots));
            unlink(lists, at.frame, ground.frames);
        }
        self.zspages.set(self.zspages.get() - 1);
        ground.release_frame(at.frame);
    }

    /// Makes a zspage of this list, `at`, a source of compaction: it gets no new
    /// objects. Returns false if it is of another list by now.
    pub(crate) fn make_source(&self, number: u32, at: At, frames: &Frames) -> bool {
        let mut lists = self.lists.lock();
        let frame = frames.get(number);
        if !at.has(frame) {
            return false;
        }
        if frame.group.get() == INHERITED {
            frame.group.set(SOURCE_INHERITED);
        } else {
            self.leave_list(&mut lists, number, at, frames);
            frame.group.set(SOURCE);
        }
        true
    }

    /// Makes a zspage of this list, `at`, an inherited one.
    pub(crate) fn inherit(&self, number: u32, at: At, frames: &Frames) {
        let mut lists = self.lists.lock();
        let frame = frames.get(number);
        if at.has(frame) && frame.group.get() != INHERITED {
            self.leave_list(&mut lists, number, at, frames);
            frame.group.set(INHERITED);
        }
    }

    fn leave_list(&self, lists: &mut Lists, number: u32, at: At, frames: &Frames) {
        unlink(lists, number, frames);
        self.room.set(self.room.get() - (u32::from(at.geometry.slots) - frames.get(number).live.get()));
    }

    /// Ends [`make_source`](Self::make_source) for a zspage that still has objects.
    pub(crate) fn end_source(&self, number: u32, at: At, frames: &Frames) {
        let mut lists = self.lists.lock();
        let frame = frames.get(number);
        if at.has(frame) && frame.group.get() == SOURCE_INHERITED {
            frame.group.set(INHERITED);
        }
        if !at.has(frame) || frame.group.get() != SOURCE {
            return;
        }
        frame.group.set(FULL);
        self.room.set(self.room.get() + (u32::from(at.geometry.slots) - frame.live.get()));
        regroup(&mut lists, number, at.geometry, frames);
    }

    /// Gives back the pages behind the last slot ever used of a zspage of this list, `at`.
    pub(crate) fn trim_tail(&self, number: u32, at: At, ground: Ground<'_>) {
        let _lists = self.lists.lock();
        let frame = ground.frames.get(number);
        if at.has(frame) {
            ground.trim_tail(number, (frame.used.get() * at.geometry.slot_bytes) as usize);
        }
    }
}

/// Takes slots of a zspage with room, for as many of `places` as it has. The class is locked.
fn take_slots(number: u32, geometry: Geometry, places: &mut [FrameOffset], ground: Ground<'_>) -> usize {
    let frame = ground.frames.get(number);
    let (live, used) = (frame.live.get(), frame.used.get());
    let count = places.len().min((u32::from(geometry.slots) - live) as usize);
    let (mut freed, mut fresh) = (frame.freed.get(), used);
    for at in &mut places[..count] {
        let slot = if freed != 0 {
            let slot = u32::from(freed) - 1;
            let address = ground.frames.address(place(number, slot, geometry));
            // SAFETY: a freed slot of a zspage whose class is locked: no other thread uses it, and
            // `free` wrote the link.
            freed = unsafe { address.cast::<u16>().read_unaligned() };
            slot
        } else {
            debug_assert!(fresh < u32::from(geometry.slots));
            fresh += 1;
            fresh - 1
        };
        *at = place(number, slot, geometry);
    }
    frame.freed.set(freed);
    frame.live.set(live + count as u32);
    if fresh > used {
        frame.used.set(fresh);
        ground.reach(number, (fresh * geometry.slot_bytes) as usize);
    }
    count
}

fn place(frame: u32, slot: u32, geometry: Geometry) -> FrameOffset {
    FrameOffset { frame, offset: (slot * geometry.slot_bytes) as u16 }
}

#[inline]
fn regroup(lists: &mut Lists, number: u32, geometry: Geometry, frames: &Frames) {
    let frame = frames.get(number);
    let (live, slots) = (frame.live.get(), u32::from(geometry.slots));
    debug_assert!(live <= slots);
    let group = if live == slots { FULL } else { (live * GROUPS as u32 / slots) as u8 };
    if group != frame.group.get() {
        unlink(lists, number, frames);
        if group != FULL {
            link(lists, number, group, frames);
        }
    }
}

fn link(lists: &mut Lists, number: u32, group: u8, frames: &Frames) {
    let frame = frames.get(number);
    let head = &mut lists.heads[usize::from(group)];
    frame.prev.set(0);
    frame.next.set(*head);
    if *head != 0 {
        frames.get(*head - 1).prev.set(number + 1);
    }
    *head = number + 1;
    frame.group.set(group);
}

fn unlink(lists: &mut Lists, number: u32, frames: &Frames) {
    let frame = frames.get(number);
    let group = frame.group.get();
    if group == FULL {
        return;
    }
    let (prev, next) = (frame.prev.get(), frame.next.get());
    match prev {
        0 => lists.heads[usize::from(group)] = next,
        prev => frames.get(prev - 1).next.set(next),
    }
    if next != 0 {
        frames.get(next - 1).prev.set(prev);
    }
    frame.group.set(FULL);
}
