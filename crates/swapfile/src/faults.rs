//! For tests: an engine that fails, lies, runs out of room or slows down on request.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::engine::{Done, Engine, Kind, Lane, Room, Transfer, LANE_DEPTH};
use crate::sync::lock;
use crate::BLOCK_BYTES;

/// A fault of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this error number and moves nothing.
    Errno(i32),
    /// It moves only its first block, and reports that.
    Short,
    /// It moves only the first half, and reports success.
    Torn,
    /// It moves nothing, and reports success.
    Lost,
    /// One bit is flipped.
    Flip,
}

/// Rates of faults, in 1/1024 of transfers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    /// Writes that end with EIO.
    pub write_eio: u16,
    /// Writes that end with ENOSPC.
    pub write_enospc: u16,
    /// Writes that are short.
    pub write_short: u16,
    /// Writes that are torn, lost, or flipped, a third each.
    pub write_lies: u16,
    /// Reads that end with EIO.
    pub read_eio: u16,
    /// Reads that are short.
    pub read_short: u16,
    /// Reads with a flipped bit.
    pub read_flip: u16,
    /// Transfers that are interrupted.
    pub interrupted: u16,
    /// Segments that cannot be reserved for lack of room.
    pub reserve_enospc: u16,
    /// Segments whose blocks cannot be given back.
    pub release_fails: u16,
}

/// The faults to inject. Shared with the engine.
pub struct Faults {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    random: u64,
    rates: Rates,
    reads: VecDeque<Fault>,
    writes: VecDeque<Fault>,
    room: Option<Room>,
    held: bool,
    waiting: usize,
    latency: Duration,
    /// Nanoseconds per KiB, added to the latency.
    ns_per_kib: u64,
    injected: u64,
}

impl Faults {
    /// Injects no faults yet. The same seed and transfers give the same faults.
    pub fn new(seed: u64) -> Arc<Faults> {
        let state = State { random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, ..State::default() };
        Arc::new(Faults { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Sets the rates of random faults.
    pub fn set_rates(&self, rates: Rates) {
        lock(&self.state).rates = rates;
    }

    /// Gives the next write this fault.
    pub fn next_write(&self, fault: Fault) {
        lock(&self.state).writes.push_back(fault);
    }

    /// Gives the next read this fault.
    pub fn next_read(&self, fault: Fault) {
        lock(&self.state).reads.push_back(fault);
    }

    /// Makes the disk report this room; `None` reports the actual room.
    pub fn set_room(&self, room: Option<Room>) {
        lock(&self.state).room = room;
    }

    /// Holds all transfers, as a slow disk would.
    pub fn hold(&self, held: bool) {
        lock(&self.state).held = held;
        self.changed.notify_all();
    }

    /// Waits until `count` transfers are held.
    pub fn wait_for_held(&self, count: usize) {
        let mut state = lock(&self.state);
        while state.waiting < count {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Adds this latency to every transfer, and `ns_per_kib` for each KiB.
    pub fn throttle(&self, latency: Duration, ns_per_kib: u64) {
        let mut state = lock(&self.state);
        (state.latency, state.ns_per_kib) = (latency, ns_per_kib);
    }

    /// Faults so far.
    pub fn injected(&self) -> u64 {
        lock(&self.state).injected
    }

    fn pass(&self, bytes: usize) {
        let mut state = lock(&self.state);
        state.waiting += 1;
        self.changed.notify_all();
        while state.held {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.waiting -= 1;
        let pause = state.latency + Duration::from_nanos(state.ns_per_kib * bytes as u64 / 1024);
        drop(state);
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    fn fate(&self, kind: Kind) -> Option<Fault> {
        let mut state = lock(&self.state);
        let scripted = match kind {
            Kind::Read => state.reads.pop_front(),
            Kind::Write => state.writes.pop_front(),
        };
        let drawn = scripted.or_else(|| {
            let rates = state.rates;
            let lie = rates.write_lies.div_ceil(3);
            let faults: &[(u16, Fault)] = match kind {
                Kind::Write => &[
                    (rates.write_eio, Fault::Errno(5)),
                    (rates.write_enospc, Fault::Errno(28)),
                    (rates.write_short, Fault::Short),
                    (lie, Fault::Torn),
                    (lie, Fault::Lost),
                    (lie, Fault::Flip),
                    (rates.interrupted, Fault::Errno(4)),
                ],
                Kind::Read => &[
                    (rates.read_eio, Fault::Errno(5)),
                    (rates.read_short, Fault::Short),
                    (rates.read_flip, Fault::Flip),
                    (rates.interrupted, Fault::Errno(4)),
                ],
            };
            let mut draw = (state.next() % 1024) as u16;
            faults.iter().find_map(|&(rate, fault)| {
                if draw < rate {
                    return Some(fault);
                }
                draw -= rate;
                None
            })
        });
        state.injected += u64::from(drawn.is_some());
        drawn
    }

    fn happens(&self, rate: impl Fn(&Rates) -> u16) -> bool {
        let mut state = lock(&self.state);
        let happens = state.next() % 1024 < u64::from(rate(&state.rates));
        state.injected += u64::from(happens);
        happens
    }

    fn flip(&self, transfer: &mut Transfer) {
        let bit = lock(&self.state).next() as usize % (transfer.len() * 8);
        transfer.buffer[transfer.start + bit / 8] ^= 1 << (bit % 8);
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 20
    }
}

/// An engine with faults.
pub struct FaultyEngine {
    inner: Arc<dyn Engine>,
    faults: Arc<Faults>,
}

impl FaultyEngine {
    /// Wraps `inner` and injects the faults.
    pub fn new(inner: Arc<dyn Engine>, faults: Arc<Faults>) -> Self {
        FaultyEngine { inner, faults }
    }
}

impl Engine for FaultyEngine {
    fn is_direct(&self) -> bool {
        self.inner.is_direct()
    }

    fn lane(&self) -> io::Result<Box<dyn Lane>> {
        let (inner, faults) = (self.inner.lane()?, self.faults.clone());
        Ok(Box::new(FaultyLane {
            inner,
            faults,
            fates: [const { None }; LANE_DEPTH],
            ended: VecDeque::new(),
        }))
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.faults.happens(|rates| rates.reserve_enospc) {
            true => Err(io::Error::from_raw_os_error(28)),
            false => self.inner.reserve(offset, len),
        }
    }

    fn release(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.faults.happens(|rates| rates.release_fails) {
            true => Err(io::Error::from_raw_os_error(95)),
            false => self.inner.release(offset, len),
        }
    }

    fn room(&self) -> io::Result<Room> {
        let said = lock(&self.faults.state).room;
        said.map_or_else(|| self.inner.room(), Ok)
    }
}

struct Fate {
    fault: Fault,
    /// The original end and token of the transfer.
    end: usize,
    token: u64,
}

struct FaultyLane {
    inner: Box<dyn Lane>,
    faults: Arc<Faults>,
    /// By the inner transfer's token, less one.
    fates: [Option<Fate>; LANE_DEPTH],
    /// Transfers that never reached the inner lane.
    ended: VecDeque<Done>,
}

impl FaultyLane {
    fn ended(&mut self, done: Done) -> Done {
        self.faults.pass(done.transfer.len());
        let Done { mut transfer, mut result } = done;
        let Some(number) = (transfer.token >> 32).checked_sub(1) else { return Done { transfer, result } };
        let fate = self.fates[number as usize].take().expect("its fate was remembered");
        (transfer.token, transfer.end) = (fate.token, fate.end);
        match fate.fault {
            Fault::Torn if result.is_ok() => result = Ok(transfer.len()),
            Fault::Flip if result.is_ok() => self.faults.flip(&mut transfer),
            _ => {}
        }
        Done { transfer, result }
    }
}

impl Lane for FaultyLane {
    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.ended.len()
    }

    fn push(&mut self, mut transfer: Transfer) {
        transfer.assert_valid();
        let Some(fault) = self.faults.fate(transfer.kind) else { return self.inner.push(transfer) };
        let half = (transfer.len() / 2).next_multiple_of(BLOCK_BYTES);
        let fate = Fate { fault, end: transfer.end, token: transfer.token };
        match fault {
            Fault::Errno(_) | Fault::Lost => {
                let result = match fault {
                    Fault::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
                    _ => Ok(transfer.len()),
                };
                return self.ended.push_back(Done { transfer, result });
            }
            Fault::Flip if transfer.kind == Kind::Write => {
                // Flipped on its way to the disk. The buffer has the flip too, but is only
                // overwritten by another place's data.
                self.faults.flip(&mut transfer);
                return self.inner.push(transfer);
            }
            Fault::Flip => {}
            Fault::Short => transfer.end = transfer.start + BLOCK_BYTES,
            Fault::Torn => transfer.end = transfer.start + half,
        }
        let number = self.fates.iter().position(Option::is_none).expect("lanes are less deep");
        self.fates[number] = Some(fate);
        assert!(transfer.token < 1 << 32);
        transfer.token |= (number as u64 + 1) << 32;
        self.inner.push(transfer);
    }

    fn pop(&mut self) -> Option<Done> {
        let done = self.ended.pop_front().or_else(|| self.inner.pop())?;
        Some(self.ended(done))
    }

    fn try_pop(&mut self) -> Option<Done> {
        let done = self.ended.pop_front().or_else(|| self.inner.try_pop())?;
        Some(self.ended(done))
    }
}
