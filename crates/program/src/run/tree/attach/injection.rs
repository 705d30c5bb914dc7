//! Creates a process that shares another's memory, maps the agent there and runs it.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use doorway::stack::{self, Start};
use doorway::{placement, AGENT_NAME, STACK_BYTES};
use sys::ptrace::{self, Held, Memory, TraceError, Tracee};
use sys::PAGE_SIZE;

use super::apart::{self, apart};
use super::image::Image;
use super::process::{self, Identity, Rights};
use super::references;
use crate::stat::Stat;

/// The clone flags of the agent's process, which shares the memory and nothing else.
const FLAGS: i32 = libc::CLONE_VM;
/// Most bytes of a mapping that are searched for a system call instruction.
const SEARCHED_BYTES: usize = 1 << 20;
/// Stop timeout. A thread with a CPU stops in microseconds, unless it waits for another's exec.
const PATIENCE_NS: u64 = 20_000_000;
/// Variables of this program's environment that the agent reads.
const KNOWN: [&str; 2] = ["UZSWAP_IAA_EMULATE", "UZSWAP_BREAK"];

/// Why a process has no agent.
#[derive(Debug)]
pub enum Failure {
    Gone,
    /// The preload object starts its agent.
    NotOurs,
    /// Its environment names another supervisor, or none.
    Anothers,
    /// The attempt may be repeated.
    NotYet,
    Refused(String),
}

impl Failure {
    fn of(error: TraceError) -> Self {
        match error {
            TraceError::Gone => Failure::Gone,
            TraceError::Stopped | TraceError::Busy | TraceError::Executed => Failure::NotYet,
            other => Failure::Refused(other.to_string()),
        }
    }

    fn refused(why: &str) -> Self {
        Failure::Refused(why.to_owned())
    }
}

/// An attempt: the agent and its target.
#[derive(Debug, Clone)]
pub struct Order {
    pub image: Arc<Image>,
    /// The path of the agent's file, for processes that see the guardian's /proc.
    pub path: String,
    /// The supervisor's address.
    pub socket: String,
    /// The supervisor came later than the program, which outlives it.
    pub is_attached: bool,
    pub pid: i32,
    /// The program that the process ran when it was chosen.
    pub identity: Identity,
}

/// Brings the agent into a process, which is stopped only briefly. The call may block for ever on
/// memory or a file system that the process serves, so it needs a thread of its own. That thread
/// must end afterwards: in some cases it still traces a thread of the process. Checks before the
/// stop only spare refused processes the stop; decisions are made while a thread is held. After a
/// [`Failure`] the process is unchanged.
pub fn bring(order: &Order) -> Result<(), Failure> {
    if order.is_attached {
        apart(|| bring_here(order))
    } else {
        bring_here(order)
    }
}

fn bring_here(order: &Order) -> Result<(), Failure> {
    let pid = order.pid;
    let own = Rights::own().ok_or_else(|| Failure::refused("/proc cannot be read"))?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
    // The object brings the agent itself: the process will say hello, or cannot be managed.
    if maps.as_ref().is_ok_and(|maps| maps.contains(&*crate::run::OBJECT_NAME.to_string_lossy())) {
        return Err(Failure::NotOurs);
    }
    permit(pid, &own)?;
    let maps = maps.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::refused("it may not be looked into"),
        _ => Failure::Gone,
    })?;
    if process::is_anothers(pid, &order.socket) {
        return Err(Failure::Anothers);
    }
    if let Some(why) = references::why_unsafe(pid).filter(|_| order.is_attached) {
        return Err(Failure::Refused(why));
    }
    let call_at = call_at(Memory::of(pid), &maps).ok_or_else(|| match process::has_memory(pid) {
        true => Failure::refused("it makes no system calls"),
        false => Failure::Gone,
    })?;
    let place = Site { call_at, vdso: range_of(&maps, "[vdso]").map_or(0, |range| range.0) };
    let thread = process::interruptible_thread(pid).ok_or(Failure::NotYet)?;
    apart::outlive();
    let held = Held::seize(thread, PATIENCE_NS).map_err(Failure::of)?;
    check(order, &place, &held, &own)?;
    let is_same_user = Rights::of(thread).is_some_and(|rights| rights.is_same_user(&own));
    let mut host = held.take(place.call_at).map_err(Failure::of)?;
    let mut own = host.clone_thread(FLAGS).map_err(Failure::of)?;
    let told = cleared(&mut host, &mut own);
    drop(host);
    let mut injection = Injection {
        order,
        place: &place,
        memory: own.memory(),
        is_same_user,
        own: &mut own,
        mapped: Vec::new(),
    };
    let started = injection.start(told);
    let mapped = injection.mapped;
    if started.is_err() {
        for (at, len) in mapped {
            let _ = own.call(libc::SYS_munmap, [at, len, 0, 0, 0, 0]);
        }
    }
    started.map_err(Failure::of)
}

/// An agent that has ended, and its program.
#[derive(Debug)]
pub struct Left {
    pub program: i32,
    pub agent: i32,
    /// The agent's own memory.
    pub own: Vec<Range<usize>>,
}

impl Left {
    /// Returns the agent's entry while it is the program's child.
    fn child(&self) -> Option<Stat> {
        Stat::of(self.agent as u32).filter(|stat| stat.parent == self.program as u32)
    }

    /// Returns whether the program still has the agent as its child.
    pub fn is_there(&self) -> bool {
        self.child().is_some()
    }
}

/// Has a program wait for its child, the agent, of which it does not know, and unmap the agent's
/// memory. `None` if that is not possible now.
pub fn clear(left: &Left) -> Option<()> {
    left.child().filter(|child| child.state == b'Z')?;
    apart(|| clear_here(left).ok_or(Failure::NotYet)).ok()
}

fn clear_here(left: &Left) -> Option<()> {
    let pid = left.program;
    let (own, number) = (Rights::own()?, process::own_number(left.agent)?);
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let call_at = call_at(Memory::of(pid), &maps)?;
    let thread = process::interruptible_thread(pid)?;
    apart::outlive();
    let held = Held::seize(thread, PATIENCE_NS).ok()?;
    permit(held.thread(), &own).ok()?;
    let mut bytes = [0; ptrace::CALL_INSTRUCTION.len()];
    held.memory().read(call_at, &mut bytes).ok().filter(|_| bytes == ptrace::CALL_INSTRUCTION)?;
    let how = (libc::__WALL | libc::WNOHANG) as usize;
    let mut host = held.take(call_at).ok()?;
    host.call(libc::SYS_wait4, [number as usize, 0, how, 0, 0, 0]).ok()?.ok()?;
    for range in &left.own {
        let _ = host.call(libc::SYS_munmap, [range.start, range.len(), 0, 0, 0, 0]).ok()?;
    }
    Some(())
}

/// Checks that this process may make system calls in a thread, or in a process's first thread.
fn permit(thread: i32, own: &Rights) -> Result<(), Failure> {
    let rights = Rights::of(thread).ok_or(Failure::Gone)?;
    match rights.refusal(own, sys::thread::id() as u64) {
        // A process without memory is ending; everything of it belongs to root.
        Some(_) if !process::has_memory(thread) => Err(Failure::Gone),
        Some(why) => Err(Failure::refused(why)),
        None => Ok(()),
    }
}

/// Repeats the checks while a thread is held: the process cannot exec or change its rights then.
fn check(order: &Order, place: &Site, held: &Held, own: &Rights) -> Result<(), Failure> {
    let pid = order.pid;
    permit(held.thread(), own)?;
    permit(pid, own)?;
    if !is_64_bit(held) {
        return Err(Failure::refused("it is a program of 32 bits"));
    }
    match Identity::of(pid) {
        None => return Err(Failure::Gone),
        Some(identity) if identity != order.identity => return Err(Failure::NotYet),
        Some(_) => {}
    }
    // Between vfork() and exec the agent would be brought into the parent.
    if Stat::of(pid as u32).is_none_or(|stat| process::share_memory(pid, stat.parent as i32)) {
        return Err(Failure::NotYet);
    }
    let mut bytes = [0; ptrace::CALL_INSTRUCTION.len()];
    match held.memory().read(place.call_at, &mut bytes) {
        Ok(_) if bytes == ptrace::CALL_INSTRUCTION => Ok(()),
        _ => Err(Failure::NotYet),
    }
}

struct Site {
    call_at: usize,
    /// The vDSO, 0 for none.
    vdso: usize,
}

#[cfg(target_arch = "x86_64")]
fn is_64_bit(held: &Held) -> bool {
    const USER_CODE: u64 = 0x33;
    held.registers().cs == USER_CODE
}

#[cfg(target_arch = "aarch64")]
fn is_64_bit(_held: &Held) -> bool {
    // Reading registers has refused a thread with the 32-bit set.
    true
}

/// Makes the kernel write down the address that it clears when `host` ends (clear_child_tid), which
/// it tells that thread alone. musl's threads all have the same address. `own`, another thread of
/// the process, maps the page for the result; returns its address.
fn cleared(host: &mut Tracee, own: &mut Tracee) -> Option<usize> {
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let room = [0, PAGE_SIZE, rights as usize, kind as usize, usize::MAX, 0];
    let at = own.call(libc::SYS_mmap, room).ok()?.ok()?;
    let _ = host.call(libc::SYS_prctl, [libc::PR_GET_TID_ADDRESS as usize, at, 0, 0, 0, 0]);
    Some(at)
}

fn refused(error: io::Error) -> TraceError {
    TraceError::Refused("no memory for the agent", error)
}

struct Injection<'a> {
    order: &'a Order,
    place: &'a Site,
    memory: Memory,
    is_same_user: bool,
    own: &'a mut Tracee,
    /// Mappings made so far: address and length.
    mapped: Vec<(usize, usize)>,
}

impl Injection<'_> {
    /// mmap(2) in the process.
    fn map(&mut self, arguments: [usize; 6]) -> Result<usize, TraceError> {
        self.own.call(libc::SYS_mmap, arguments)?.map_err(refused)
    }

    /// Reads the address that the kernel wrote to `told` and unmaps that page.
    fn address_at(&mut self, told: usize) -> Option<usize> {
        let mut address = [0; size_of::<usize>()];
        let is_told = self.memory.read(told, &mut address).is_ok();
        let _ = self.own.call(libc::SYS_munmap, [told, PAGE_SIZE, 0, 0, 0, 0]);
        is_told.then_some(usize::from_ne_bytes(address)).filter(|address| *address != 0)
    }

    /// Maps the agent by the new thread, which starts there when it is released.
    fn start(&mut self, told: Option<usize>) -> Result<(), TraceError> {
        let cleared = told.and_then(|told| self.address_at(told));
        let image = &self.order.image;
        let layout = &image.layout;
        let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
        let fixed = libc::MAP_FIXED as usize;
        let read_write = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let no_file = usize::MAX;
        let len = layout.span() + STACK_BYTES;
        let mut surplus = None;
        let base = placement::reserve(
            len,
            |len| self.map([0, len, libc::PROT_NONE as usize, private, no_file, 0]),
            |at, len| surplus = Some((at, len)),
        )?;
        self.mapped.push((base, len));
        if let Some((at, len)) = surplus {
            self.own.call(libc::SYS_munmap, [at, len, 0, 0, 0, 0])?.map_err(refused)?;
        }
        let stack_at = base + layout.span();
        self.map([stack_at, STACK_BYTES, read_write, private | fixed, no_file, 0])?;

        let file = self.open_agent(stack_at)?;
        for segment in layout.segments() {
            let at = base + segment.start;
            let protection = segment.protection as usize;
            let from_file = segment.filled.next_multiple_of(PAGE_SIZE);
            match file {
                Some(file) => {
                    let flags = libc::MAP_PRIVATE as usize | fixed;
                    self.map([at, from_file, protection, flags, file, segment.offset])?;
                    if segment.protection & libc::PROT_WRITE != 0 && segment.filled < from_file {
                        let zeroes = vec![0; from_file - segment.filled];
                        self.memory.write(at + segment.filled, &zeroes).map_err(refused)?;
                    }
                    if from_file < segment.len {
                        let (at, len) = (at + from_file, segment.len - from_file);
                        self.map([at, len, protection, private | fixed, no_file, 0])?;
                    }
                }
                None => {
                    self.map([at, segment.len, read_write, private | fixed, no_file, 0])?;
                    self.memory.write(at, image.contents(segment)).map_err(refused)?;
                    let arguments = [at, segment.len, protection, 0, 0, 0];
                    self.own.call(libc::SYS_mprotect, arguments)?.map_err(refused)?;
                }
            }
        }

        let top = stack_at + STACK_BYTES;
        let range = format!("{stack_at:x}-{top:x}");
        let variables: Vec<_> = self.variables(cleared).collect();
        let mut random = [0; 16];
        sys::files::random(&mut random).map_err(refused)?;
        let start = Start {
            arguments: &[AGENT_NAME.to_bytes(), self.order.socket.as_bytes(), range.as_bytes()],
            environment: &variables.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            // SAFETY: queries constants.
            shared: stack::SHARED.map(|kind| unsafe { libc::getauxval(kind) }),
            vdso: self.place.vdso,
            headers: base + layout.headers,
            header_count: layout.header_count,
            entry: base + layout.entry,
            random,
        };
        let mut bytes = [0; stack::BYTES];
        let too_long = || TraceError::Refused("variables", io::ErrorKind::ArgumentListTooLong.into());
        let pointer = start.write(top, &mut bytes).ok_or_else(too_long)?;
        let written = &bytes[bytes.len() - (top - pointer)..];
        self.memory.write(pointer, written).map_err(refused)?;
        self.own.divert(start.entry, pointer)
    }

    /// Opens the agent's file by the new thread, to share its pages with other processes. The agent
    /// is copied under another user, root or process namespace, where the path may lead elsewhere.
    fn open_agent(&mut self, scratch: usize) -> Result<Option<usize>, TraceError> {
        let path = [self.order.path.as_bytes(), b"\0"].concat();
        self.memory.write(scratch, &path).map_err(refused)?;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let opened = self.own.call(libc::SYS_openat, [libc::AT_FDCWD as usize, scratch, flags, 0, 0, 0])?;
        let meant = process::file_at(&format!("/proc/self/fd/{}", self.order.image.file.as_raw_fd()));
        let found = |file: &usize| process::file_at(&format!("/proc/{}/fd/{file}", self.own.thread()));
        Ok(opened.ok().filter(|file| meant.is_some() && found(file) == meant))
    }

    /// The agent's environment: for a process of this user, the variables of [`KNOWN`].
    fn variables(&self, cleared: Option<usize>) -> impl Iterator<Item = Vec<u8>> {
        let cleared = cleared.map(|address| format!("UZSWAP_CLEARED={address:x}").into_bytes());
        let known = if self.is_same_user { &KNOWN[..] } else { &[] };
        let own = known.iter().filter_map(|name| {
            let value = std::env::var_os(name)?;
            Some([name.as_bytes(), b"=", value.as_bytes()].concat())
        });
        let process = process::own_number(self.order.pid).unwrap_or(self.order.pid);
        let attached = self.order.is_attached.then(|| b"UZSWAP_ATTACHED=1".to_vec());
        own.chain(cleared).chain(attached).chain([format!("UZSWAP_PROCESS={process}").into_bytes()])
    }
}

fn range_of(maps: &str, name: &str) -> Option<(usize, usize)> {
    let line = maps.lines().find(|line| line.ends_with(name))?;
    sys::maps::parse(line.as_bytes()).map(|mapping| (mapping.start, mapping.end))
}

/// Returns the address of a system call instruction in the vDSO or the program.
fn call_at(memory: Memory, maps: &str) -> Option<usize> {
    let code =
        maps.lines().filter_map(|line| sys::maps::parse(line.as_bytes())).filter(|mapping| mapping.execute);
    let ranges = range_of(maps, "[vdso]").into_iter().chain(code.map(|mapping| (mapping.start, mapping.end)));
    ranges.into_iter().find_map(|(start, end)| {
        let mut bytes = vec![0; (end - start).min(SEARCHED_BYTES)];
        let len = memory.read(start, &mut bytes).ok()?;
        let step = if cfg!(target_arch = "aarch64") { 4 } else { 1 };
        let call = ptrace::CALL_INSTRUCTION;
        (0..len.saturating_sub(call.len() - 1))
            .step_by(step)
            .find(|at| bytes[*at..].starts_with(call))
            .map(|at| start + at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_object_has_a_system_call() {
        let memory = Memory::of(std::process::id() as i32);
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let found = call_at(memory, &maps).expect("in the vDSO, or in this program");
        let mut bytes = [0; 4];
        let len = ptrace::CALL_INSTRUCTION.len();
        memory.read(found, &mut bytes[..len]).unwrap();
        assert_eq!(&bytes[..len], ptrace::CALL_INSTRUCTION);
    }
}
