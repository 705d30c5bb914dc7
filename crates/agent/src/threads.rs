//! The agent's threads except the control thread: the stack of each, and whether it has ended.
//!
//! A thread has ended when the kernel clears the word set by set_tid_address(2), which it does once
//! the thread can touch no memory. Another thread may then use its stack.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use sys::thread::{self, Files};
use sys::{arena, PAGE_SIZE};

use crate::state::AGENT;

pub type Entry = extern "C" fn(usize);

/// Most stacks; further threads are refused.
const STACKS: usize = 512;

struct Stack {
    /// Its lowest address, 0 if not allocated.
    memory: AtomicUsize,
    state: AtomicU32,
    entry: AtomicUsize,
    argument: AtomicUsize,
}

/// Unused. The kernel writes this when a thread ends.
const FREE: u32 = 0;
/// In use by a thread, or by one being made.
const USED: u32 = 1;

impl Stack {
    const fn new() -> Self {
        let [memory, entry, argument] = [const { AtomicUsize::new(0) }; 3];
        Stack { memory, state: AtomicU32::new(FREE), entry, argument }
    }

    fn take(&self) -> bool {
        self.state.compare_exchange(FREE, USED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn free(&self) {
        self.state.store(FREE, Ordering::Release);
    }
}

pub(crate) struct Stacks([Stack; STACKS]);

impl Stacks {
    pub(crate) const fn new() -> Self {
        Stacks([const { Stack::new() }; STACKS])
    }
}

fn stack_bytes() -> usize {
    thread::thread_bytes().next_multiple_of(PAGE_SIZE)
}

/// Reserves a stack for the caller, with zeroed memory.
fn reserve() -> io::Result<(usize, NonNull<u8>)> {
    let index =
        AGENT.stacks.0.iter().position(Stack::take).ok_or(io::Error::from_raw_os_error(libc::EAGAIN))?;
    let stack = &AGENT.stacks.0[index];
    stack.entry.store(0, Ordering::Release);
    let memory = match NonNull::new(stack.memory.load(Ordering::Acquire) as *mut u8) {
        Some(memory) => {
            discard(memory);
            memory
        }
        None => arena::take(stack_bytes(), PAGE_SIZE).inspect_err(|_| stack.free())?,
    };
    stack.memory.store(memory.as_ptr().addr(), Ordering::Release);
    Ok((index, memory))
}

/// Gives back the frames of a stack, which then reads as zeroes.
fn discard(memory: NonNull<u8>) {
    // SAFETY: a stack of `stack_bytes` without a thread.
    unsafe { sys::memory::discard(memory, stack_bytes()) };
}

/// Starts a thread that shares the caller's file table. Fails if the kernel makes no thread, or the
/// arena is full.
pub fn spawn(entry: Entry, argument: usize) -> io::Result<()> {
    let (index, memory) = reserve()?;
    let stack = &AGENT.stacks.0[index];
    stack.entry.store(entry as *const () as usize, Ordering::Relaxed);
    stack.argument.store(argument, Ordering::Release);
    // SAFETY: the memory is the thread's until it has ended, and it keeps to the rules.
    let started = unsafe { thread::spawn(memory, Files::Shared, begin, index) };
    started.map(|_| ()).inspect_err(|_| stack.free())
}

extern "C" fn begin(index: usize) {
    let stack = &AGENT.stacks.0[index];
    thread::clear_at_end(Some(&stack.state));
    // SAFETY: `spawn` stored a function of this type.
    let entry = unsafe { std::mem::transmute::<usize, Entry>(stack.entry.load(Ordering::Acquire)) };
    entry(stack.argument.load(Ordering::Acquire));
}

/// Prepares a thread that another makes: its stack and its thread pointer. Fails if the arena is
/// full.
pub fn prepare(entry: Entry) -> io::Result<(usize, usize)> {
    let (_, memory) = reserve()?;
    // SAFETY: the memory is that thread's; `forget` skips it while it runs.
    Ok(unsafe { thread::prepare(memory, entry, 0) })
}

/// Counts the threads that have not ended and whose function's address satisfies `is_wanted`.
pub fn count(is_wanted: impl Fn(usize) -> bool) -> usize {
    AGENT
        .stacks
        .0
        .iter()
        .filter(|stack| is_used(stack) && is_wanted(stack.entry.load(Ordering::Acquire)))
        .count()
}

/// Whether a thread has begun on a stack or is about to; a prepared one ([`prepare`]) has no entry.
fn is_used(stack: &Stack) -> bool {
    stack.state.load(Ordering::Acquire) == USED && stack.entry.load(Ordering::Acquire) != 0
}

/// In a forked child, where these threads do not exist: frees all stacks but the calling thread's.
pub fn forget() {
    let local = 0u8;
    let here = (&raw const local).addr();
    for stack in &AGENT.stacks.0 {
        let memory = stack.memory.load(Ordering::Acquire);
        let own = memory..memory + stack_bytes();
        if stack.state.load(Ordering::Acquire) == USED && !own.contains(&here) {
            stack.free();
        }
    }
}

/// Gives back the frames of stacks without a thread.
pub fn discard_free() {
    for stack in &AGENT.stacks.0 {
        let Some(memory) = NonNull::new(stack.memory.load(Ordering::Acquire) as *mut u8) else { continue };
        if stack.take() {
            discard(memory);
            stack.free();
        }
    }
}
