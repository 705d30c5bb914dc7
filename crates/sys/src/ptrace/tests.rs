use super::*;
use crate::thread;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

/// Enough for any machine.
const PATIENCE_NS: u64 = 60_000_000_000;

/// The address of a system call instruction in the vDSO.
fn call_at(pid: i32) -> usize {
    // The vDSO is mapped last into a new program's address space.
    let mapping = loop {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        match maps.lines().find(|line| line.ends_with("[vdso]")) {
            Some(line) => break crate::maps::parse(line.as_bytes()).unwrap(),
            None => std::thread::yield_now(),
        }
    };
    let mut bytes = vec![0; mapping.end - mapping.start];
    Memory::of(pid).read(mapping.start, &mut bytes).unwrap();
    let found = bytes.windows(CALL_INSTRUCTION.len()).position(|bytes| bytes == CALL_INSTRUCTION);
    mapping.start + found.expect("in the vDSO")
}

/// A child that runs its program, its number and the address of a call in it; `None` where children
/// may not be traced.
fn start(command: &mut Command) -> Option<(Child, i32, usize)> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let own = std::fs::read_link("/proc/self/exe").unwrap();
    while std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|path| path == own) {
        std::thread::yield_now();
    }
    if let Err(TraceError::NotPermitted) = Held::seize(pid, PATIENCE_NS) {
        testkit::skip!("trace", "children may not be traced");
        child.kill().unwrap();
        child.wait().unwrap();
        return None;
    }
    Some((child, pid, call_at(pid)))
}

fn seize(thread: i32, call_at: usize) -> Result<Tracee, TraceError> {
    Held::seize(thread, PATIENCE_NS)?.take(call_at)
}

#[test]
fn an_interrupted_read_continues_and_threads_come_and_go() {
    let Some((mut child, pid, call_at)) = start(&mut Command::new("cat")) else { return };
    let flags = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
    for round in 0..40u8 {
        let mut host = seize(pid, call_at).unwrap();
        assert_eq!(host.call(libc::SYS_getpid, [0; 6]).unwrap().unwrap(), pid as usize);
        let refused = host.call(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]).unwrap().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
        let mut made = host.clone_thread(flags).unwrap();
        drop(host);
        assert_eq!(made.call(libc::SYS_gettid, [0; 6]).unwrap().unwrap(), made.thread() as usize);
        // It echoes while one of its threads is stopped.
        child.stdin.as_mut().unwrap().write_all(&[round]).unwrap();
        let mut echo = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut echo).unwrap();
        assert_eq!(echo, [round]);
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_sleep_that_was_interrupted_is_slept_to_its_end() {
    let begin = crate::now_ns();
    let Some((mut child, pid, call_at)) = start(Command::new("sleep").arg("0.3")) else { return };
    for _ in 0..10 {
        match seize(pid, call_at) {
            Ok(mut host) => drop(host.call(libc::SYS_getpid, [0; 6])),
            Err(TraceError::Gone | TraceError::NotPermitted) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(child.wait().unwrap().success());
    assert!(crate::now_ns() - begin >= 300_000_000);
}

#[test]
fn the_word_of_a_stop_may_be_taken_by_others() {
    let Some((mut child, pid, call_at)) = start(&mut Command::new("cat")) else { return };
    request(libc::PTRACE_SEIZE, pid, 0, OPTIONS as usize).unwrap();
    request(libc::PTRACE_INTERRUPT, pid, 0, 0).unwrap();
    let mut status = 0;
    // SAFETY: the status is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::__WALL) }, pid);
    let held = Held::await_interrupt(pid, PATIENCE_NS).unwrap();
    drop(held.take(call_at).unwrap());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

fn state(pid: i32) -> u8 {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
    let state = crate::procfs::behind_name(&stat).unwrap().next().unwrap()[0];
    state
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to our own child.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

fn wait_until_stopped(pid: i32) {
    let begin = crate::now_ns();
    while state(pid) != b'T' {
        assert!(crate::now_ns() - begin < PATIENCE_NS, "it is not stopped");
        thread::sleep_ns(100_000);
    }
}

#[test]
fn a_stopped_process_makes_calls_and_stays_stopped() {
    let Some((mut child, pid, gate)) = start(&mut Command::new("cat")) else { return };
    signal(pid, libc::SIGSTOP);
    wait_until_stopped(pid);
    for _ in 0..10 {
        let mut host = seize(pid, gate).unwrap();
        assert_eq!(host.call(libc::SYS_getpid, [0; 6]).unwrap().unwrap(), pid as usize);
        let mut made = host.clone_thread(libc::CLONE_VM).unwrap();
        drop(host);
        wait_until_stopped(pid);
        assert_eq!(made.call(libc::SYS_gettid, [0; 6]).unwrap().unwrap(), made.thread() as usize);
    }
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    thread::sleep_ns(20_000_000);
    assert_eq!(state(pid), b'T');
    signal(pid, libc::SIGCONT);
    let mut echo = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut echo).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// The stop is the program's own, whenever it comes.
#[test]
fn a_stop_that_comes_during_calls_is_kept() {
    let Some((mut child, pid, gate)) = start(&mut Command::new("cat")) else { return };
    for round in 0..300u64 {
        let stopper = std::thread::spawn(move || {
            thread::sleep_ns(round * 1_000);
            signal(pid, libc::SIGSTOP);
        });
        while !stopper.is_finished() {
            match seize(pid, gate) {
                Ok(mut host) => drop(host.call(libc::SYS_getpid, [0; 6])),
                Err(error) => panic!("{error}"),
            }
        }
        stopper.join().unwrap();
        wait_until_stopped(pid);
        signal(pid, libc::SIGCONT);
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// A number stays a traced thread's even if the process executes another program.
#[test]
fn another_program_is_not_taken_for_the_one_before() {
    let mut shell = Command::new("sh");
    let Some((mut child, pid, vdso)) = start(shell.args(["-c", "read line; exec cat"])) else { return };
    let flags = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
    let made = seize(pid, vdso).unwrap().clone_thread(flags).unwrap();
    let memory = made.memory();
    let mut bytes = [0; CALL_INSTRUCTION.len()];
    assert_eq!(memory.read(vdso, &mut bytes).unwrap(), bytes.len());
    request(libc::PTRACE_SEIZE, pid, 0, OPTIONS as usize).unwrap();
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    // The exec waits until the thread's end has been read.
    while memory.read(vdso, &mut bytes).is_ok() {
        std::thread::yield_now();
    }
    assert!(matches!(wait(made.thread()), Err(TraceError::Gone)));
    assert_eq!(wait(pid).unwrap(), Stop::Executed);
    request(libc::PTRACE_INTERRUPT, pid, 0, 0).unwrap();
    // As if another thread took the news: it is at its exec.
    assert!(matches!(Held::await_interrupt(pid, PATIENCE_NS), Err(TraceError::Executed)));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// Computes with SVE registers until told to end; returns 1 if any of them changed.
///
/// # Safety
/// The machine must have SVE.
#[cfg(target_arch = "aarch64")]
unsafe fn keep_wide_vectors(end: &std::sync::atomic::AtomicU32) -> i32 {
    let changed: u64;
    // SAFETY: reads the word; all registers that a function must preserve are named.
    unsafe {
        std::arch::asm!(
            ".arch_extension sve",
            "ptrue p0.b",
            "index z0.b, #1, #3",
            "2:",
            "ptrue p1.b",
            "index z1.b, #1, #3",
            "cmpne p2.b, p1/z, z0.b, z1.b",
            "cntp x9, p1, p2.b",
            "cntp x10, p1, p1.b",
            "cntp x11, p1, p0.b",
            "sub x10, x10, x11",
            "orr x9, x9, x10",
            "cbnz x9, 3f",
            "ldar w10, [{end}]",
            "cbz w10, 2b",
            "3:",
            end = in(reg) end.as_ptr(),
            out("x9") changed, out("x10") _, out("x11") _,
            out("v0") _, out("v1") _, out("p0") _, out("p1") _, out("p2") _,
        );
    }
    i32::from(changed != 0)
}

/// A system call discards them, and here the thread makes none itself.
#[cfg(target_arch = "aarch64")]
#[test]
fn wide_vector_registers_stay_as_they_are() {
    use std::sync::atomic::{AtomicU32, Ordering};
    if !std::arch::is_aarch64_feature_detected!("sve") {
        return testkit::skip!("cpu", "no SVE");
    }
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new zeroed page, never unmapped; the child only computes.
    let (end, pid) = unsafe {
        let page = libc::mmap(std::ptr::null_mut(), crate::PAGE_SIZE, rights, kind, -1, 0);
        let end = &*page.cast::<AtomicU32>();
        match libc::fork() {
            0 => libc::_exit(keep_wide_vectors(end)),
            pid => (end, pid),
        }
    };
    let call_at = call_at(pid);
    for _ in 0..50 {
        match seize(pid, call_at) {
            Ok(mut host) => drop(host.call(libc::SYS_getpid, [0; 6])),
            Err(TraceError::NotPermitted) => testkit::skip!("trace", "children may not be traced"),
            Err(error) => panic!("{error}"),
        }
        thread::sleep_ns(1_000_000);
    }
    end.store(1, Ordering::Release);
    let mut status = 0;
    // SAFETY: the status is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "a register changed");
}
