//! Making a thread in another process that maps the agent and runs it.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use doorway::stack::{self, Start};
use doorway::{AGENT_NAME, STACK_BYTES};
use sys::ptrace::{self, TraceError, Tracee};
use sys::PAGE_SIZE;

use super::image::Image;
use super::process;

/// As the agent's threads have it: not the program's descriptors.
const FLAGS: i32 =
    libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
/// Most bytes of a mapping that are searched for a system call instruction.
const SEARCHED_BYTES: usize = 1 << 20;

/// Why a process has no agent.
#[derive(Debug)]
pub enum Failure {
    /// It has ended.
    Gone,
    /// It has the object, which sees to that.
    NotOurs,
    /// To be tried again.
    NotYet,
    /// The same, with the thread that is traced already.
    Stopping,
    /// It cannot be.
    Refused(String),
}

impl Failure {
    fn of(error: TraceError) -> Self {
        match error {
            TraceError::Gone => Failure::Gone,
            TraceError::Stopped => Failure::NotYet,
            TraceError::Busy => Failure::Stopping,
            other => Failure::Refused(other.to_string()),
        }
    }
}

/// Brings the agent into a process, which goes on meanwhile. `waiting` is a thread of it that was
/// [`Failure::Stopping`].
///
/// # Errors
/// See [`Failure`]. The process is as it was then.
pub fn bring(image: &Image, pid: i32, socket: &str, waiting: Option<i32>) -> Result<(), Failure> {
    let place = match waiting {
        Some(thread) => Place::in_process(pid).map_err(|failure| let_go(thread).err().unwrap_or(failure))?,
        None => untouched(pid).and_then(|()| Place::in_process(pid))?,
    };
    let traced = match waiting {
        Some(thread) => Tracee::resume_seizing(thread, place.gate),
        None => {
            // One that sleeps for its disk, or for a child's exec, would not come.
            let threads = process::threads(pid).into_iter();
            let mut ready =
                threads.filter(|thread| matches!(process::thread_state(pid, *thread), Some(b'R' | b'S')));
            let Some(thread) = ready.next() else { return Err(Failure::NotYet) };
            Tracee::seize(thread, place.gate)
        }
    };
    let mut host = traced.map_err(Failure::of)?;
    if !is_64_bit(&host) {
        return Err(Failure::Refused("it is a program of 32 bits".to_owned()));
    }
    let mut own = host.clone_thread(FLAGS).map_err(Failure::of)?;
    let cleared = cleared(pid, &mut host, &mut own);
    drop(host);
    let mut mapped = Vec::new();
    let started = start(image, pid, socket, &place, cleared, &mut own, &mut mapped);
    if started.is_err() {
        for (at, len) in mapped {
            let _ = own.call(libc::SYS_munmap, [at, len, 0, 0, 0, 0]);
        }
    }
    started.map_err(Failure::of)
}

/// Whether nothing is in the way of a process that nobody has touched so far.
fn untouched(pid: i32) -> Result<(), Failure> {
    if let Some(obstacle) = process::obstacle(pid) {
        return Err(Failure::Refused(obstacle));
    }
    // Between vfork() and exec: what would be brought would be in the parent.
    if process::parent(pid).is_none_or(|parent| process::share_memory(pid, parent)) {
        return Err(Failure::NotYet);
    }
    Ok(())
}

/// Lets go of a thread that is being traced, which it can be when it has stopped.
fn let_go(thread: i32) -> Result<(), Failure> {
    match Tracee::resume_seizing(thread, 0) {
        Err(TraceError::Busy) => Err(Failure::Stopping),
        _ => Ok(()),
    }
}

/// What is needed of a process's mappings.
struct Place {
    /// Of a system call instruction.
    gate: usize,
    /// Of the kernel's own object, 0 for none.
    vdso: usize,
}

impl Place {
    fn in_process(pid: i32) -> Result<Self, Failure> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
            .map_err(|_| Failure::Refused("it may not be looked into".to_owned()))?;
        if maps.is_empty() {
            return Err(Failure::Gone);
        }
        // The object brings the agent itself, which is about to say hello, or cannot.
        if maps.contains(&*super::super::OBJECT_NAME.to_string_lossy()) {
            return Err(Failure::NotOurs);
        }
        let gate = gate(pid, &maps).ok_or_else(|| Failure::Refused("it makes no system calls".to_owned()))?;
        Ok(Place { gate, vdso: range_of(&maps, "[vdso]").map_or(0, |range| range.0) })
    }
}

#[cfg(target_arch = "x86_64")]
fn is_64_bit(host: &Tracee) -> bool {
    const USER_CODE: u64 = 0x33;
    host.registers().cs == USER_CODE
}

#[cfg(target_arch = "aarch64")]
fn is_64_bit(_host: &Tracee) -> bool {
    // Registers of another number were refused.
    true
}

/// What the kernel clears when a thread ends, which it tells that thread alone: musl's threads all have the same. `own` is another
/// thread of the process, which sees to the room for the answer.
fn cleared(pid: i32, host: &mut Tracee, own: &mut Tracee) -> Option<usize> {
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let room = [0, PAGE_SIZE, rights as usize, kind as usize, usize::MAX, 0];
    let at = own.call(libc::SYS_mmap, room).ok()?.ok()?;
    let asked = host.call(libc::SYS_prctl, [libc::PR_GET_TID_ADDRESS as usize, at, 0, 0, 0, 0]);
    let mut address = [0; size_of::<usize>()];
    let is_told = matches!(asked, Ok(Ok(_))) && ptrace::read_memory(pid, at, &mut address).is_ok();
    let _ = own.call(libc::SYS_munmap, [at, PAGE_SIZE, 0, 0, 0, 0]);
    is_told.then_some(usize::from_ne_bytes(address)).filter(|address| *address != 0)
}

/// Has the new thread map the agent, and begin there when it is let go. Puts where, and how long, into `mapped`.
fn start(
    image: &Image,
    pid: i32,
    socket: &str,
    place: &Place,
    cleared: Option<usize>,
    own: &mut Tracee,
    mapped: &mut Vec<(usize, usize)>,
) -> Result<(), TraceError> {
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let refused = |error| TraceError::Refused("no memory for the agent", error);
    let no_file = usize::MAX;
    let map =
        |own: &mut Tracee, at: usize, len: usize, protection: i32, flags: i32, file: usize, offset: usize| {
            let arguments = [at, len, protection as usize, flags as usize, file, offset];
            own.call(libc::SYS_mmap, arguments)?.map_err(refused)
        };
    let stack_at = map(own, 0, STACK_BYTES, read_write, private, no_file, 0)?;
    mapped.push((stack_at, STACK_BYTES));
    let base = map(own, 0, image.layout.span(), libc::PROT_NONE, private, no_file, 0)?;
    mapped.push((base, image.layout.span()));

    // Where this process's memory file can be opened its pages are shared with others that have the agent. Another user,
    // another root, another namespace of processes gets a copy.
    let path = [image.path().as_bytes(), b"\0"].concat();
    ptrace::write_memory(pid, stack_at, &path).map_err(refused)?;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let opened = own.call(libc::SYS_openat, [libc::AT_FDCWD as usize, stack_at, flags, 0, 0, 0])?;
    let file = opened.ok().filter(|_| is_agent(own, pid, stack_at));
    for segment in image.layout.segments() {
        let at = base + segment.start;
        let bit = |is_set: bool, bit: i32| if is_set { bit } else { 0 };
        let protection = bit(segment.read, libc::PROT_READ)
            | bit(segment.write, libc::PROT_WRITE)
            | bit(segment.execute, libc::PROT_EXEC);
        let from_file = segment.filled.next_multiple_of(PAGE_SIZE);
        match file {
            Some(file) => {
                let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
                map(own, at, from_file, protection, flags, file, segment.offset)?;
                if segment.write && segment.filled < from_file {
                    let zeroes = vec![0; from_file - segment.filled];
                    ptrace::write_memory(pid, at + segment.filled, &zeroes).map_err(refused)?;
                }
                if from_file < segment.len {
                    let flags = private | libc::MAP_FIXED;
                    map(own, at + from_file, segment.len - from_file, protection, flags, no_file, 0)?;
                }
            }
            None => {
                map(own, at, segment.len, read_write, private | libc::MAP_FIXED, no_file, 0)?;
                ptrace::write_memory(pid, at, image.contents(segment)).map_err(refused)?;
                let arguments = [at, segment.len, protection as usize, 0, 0, 0];
                own.call(libc::SYS_mprotect, arguments)?.map_err(refused)?;
            }
        }
    }

    let top = stack_at + STACK_BYTES;
    let range = format!("{stack_at:x}-{top:x}");
    let cleared = cleared.map(|address| format!("UZSWAP_CLEARED={address:x}").into_bytes());
    let environment: Vec<_> = environment().into_iter().chain(cleared).collect();
    let mut random = [0; 16];
    sys::files::random(&mut random).map_err(refused)?;
    let layout = &image.layout;
    let start = Start {
        arguments: &[AGENT_NAME.to_bytes(), socket.as_bytes(), range.as_bytes()],
        environment: &environment.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        // SAFETY: asks for numbers.
        shared: stack::SHARED.map(|kind| unsafe { libc::getauxval(kind) }),
        vdso: place.vdso,
        headers: base + layout.headers,
        header_count: layout.header_count,
        entry: base + layout.entry,
        random,
    };
    let mut bytes = [0; stack::BYTES];
    let too_long = || TraceError::Refused("variables", std::io::ErrorKind::ArgumentListTooLong.into());
    let pointer = start.write(top, &mut bytes).ok_or_else(too_long)?;
    let written = &bytes[bytes.len() - (top - pointer)..];
    ptrace::write_memory(pid, pointer, written).map_err(refused)?;
    own.divert(start.entry, pointer)
}

/// Whether what was opened by a path of this process's is what is meant: the path may lead elsewhere there.
fn is_agent(own: &mut Tracee, pid: i32, scratch: usize) -> bool {
    let mut name = [0u8; 64];
    let link = own.call(libc::SYS_readlinkat, [libc::AT_FDCWD as usize, scratch, scratch + 4096, 64, 0, 0]);
    let Ok(Ok(len)) = link else { return false };
    let expected = format!("/memfd:{}", AGENT_NAME.to_string_lossy());
    ptrace::read_memory(pid, scratch + 4096, &mut name).is_ok()
        && name[..len.min(64)].starts_with(expected.as_bytes())
}

/// This program's own variables, but for the socket, which is an argument.
fn environment() -> Vec<Vec<u8>> {
    let own = std::env::vars_os()
        .filter(|(name, _)| name.as_bytes().starts_with(b"UZSWAP_") && name != "UZSWAP_SOCKET");
    own.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect()
}

fn range_of(maps: &str, name: &str) -> Option<(usize, usize)> {
    let line = maps.lines().find(|line| line.ends_with(name))?;
    sys::maps::parse(line.as_bytes()).map(|mapping| (mapping.start, mapping.end))
}

/// The address of a system call instruction: in the kernel's own object, or in the program.
fn gate(pid: i32, maps: &str) -> Option<usize> {
    let code =
        maps.lines().filter_map(|line| sys::maps::parse(line.as_bytes())).filter(|mapping| mapping.execute);
    let ranges = range_of(maps, "[vdso]").into_iter().chain(code.map(|mapping| (mapping.start, mapping.end)));
    ranges.into_iter().find_map(|(start, end)| {
        let mut bytes = vec![0; (end - start).min(SEARCHED_BYTES)];
        let len = ptrace::read_memory(pid, start, &mut bytes).ok()?;
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
        let pid = std::process::id() as i32;
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let found = gate(pid, &maps).expect("in the vDSO, or in this program");
        let mut bytes = [0; 4];
        let len = ptrace::CALL_INSTRUCTION.len();
        ptrace::read_memory(pid, found, &mut bytes[..len]).unwrap();
        assert_eq!(&bytes[..len], ptrace::CALL_INSTRUCTION);
    }
}
