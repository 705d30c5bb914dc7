//! A failing device between programs and a file: the kernel holds every read, write and reservation
//! of the file by a process tree (seccomp's user notification, Linux 5.5) until the test decides.

use std::fs::{read_link, File, OpenOptions};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    /// fallocate(2): reserving blocks, or giving them back.
    Blocks,
}

pub struct Call {
    pub kind: Kind,
    pub offset: u64,
    pub len: u64,
    thread: u32,
    descriptor: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Go,
    Fail(i32),
}

impl Call {
    pub fn file(&self) -> File {
        let path = format!("/proc/{}/fd/{}", self.thread, self.descriptor);
        OpenOptions::new().read(true).write(true).open(path).expect("the caller has the file open")
    }
}

const CALLS: [(libc::c_long, Kind); 3] =
    [(libc::SYS_pread64, Kind::Read), (libc::SYS_pwrite64, Kind::Write), (libc::SYS_fallocate, Kind::Blocks)];

/// Lets `judge` decide about every call of `command` and its children on files in `directory`. Join
/// the thread after the command has ended; it returns false where the kernel lacks this.
pub fn put_between(
    command: &mut Command,
    directory: PathBuf,
    judge: impl FnMut(&Call) -> Answer + Send + 'static,
) -> JoinHandle<bool> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = theirs.as_raw_fd();
    // SAFETY: only system calls, in a child with one thread.
    unsafe { command.pre_exec(move || listen(socket)) };
    std::thread::spawn(move || {
        let listener = receive(ours.as_raw_fd());
        drop(theirs);
        listener.map(|listener| serve(&listener, &directory, judge)).is_some()
    })
}

/// In the child: sets the filter and sends its descriptor, or one byte without it on failure.
fn listen(socket: RawFd) -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let jump = |number: libc::c_long, past: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: past,
        jf: 0,
        k: number as u32,
    };
    let mut filter = [
        // The call's number. Programs here have one architecture.
        statement(load, 0),
        jump(CALLS[0].0, 3),
        jump(CALLS[1].0, 2),
        jump(CALLS[2].0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        // The low half of the third argument: whole blocks, unlike most reads of /proc.
        statement(load, 16 + 2 * 8 + if cfg!(target_endian = "big") { 4 } else { 0 }),
        libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16,
            jt: 1,
            jf: 0,
            k: 4095,
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter of this function, for the child's only thread.
    let listener = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &program) as RawFd
    };
    send(socket, listener)
}

#[repr(C, align(8))]
struct Control([u8; 64]);

fn with_message<T>(message: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let (mut byte, mut control) = (0u8, Control([0; 64]));
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: zeroes are valid; the needed fields are set below.
    let mut header: libc::msghdr = unsafe { zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
    header.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: arithmetic.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    message(&mut header)
}

fn send(socket: RawFd, descriptor: RawFd) -> io::Result<()> {
    with_message(|header| {
        if descriptor < 0 {
            header.msg_controllen = 0;
        } else {
            // SAFETY: the header has room for one.
            unsafe {
                let control = &mut *libc::CMSG_FIRSTHDR(header);
                (control.cmsg_level, control.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
                control.cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
                libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(descriptor);
            }
        }
        // SAFETY: everything the message points to is valid.
        match unsafe { libc::sendmsg(socket, header, 0) } {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

fn receive(socket: RawFd) -> Option<OwnedFd> {
    with_message(|header| {
        // SAFETY: as in `send`; this function owns a received descriptor.
        unsafe {
            if libc::recvmsg(socket, header, libc::MSG_CMSG_CLOEXEC) != 1 {
                return None;
            }
            let control = libc::CMSG_FIRSTHDR(header).as_ref()?;
            Some(OwnedFd::from_raw_fd(libc::CMSG_DATA(control).cast::<RawFd>().read_unaligned()))
        }
    })
}

fn serve(listener: &OwnedFd, directory: &std::path::Path, mut judge: impl FnMut(&Call) -> Answer) {
    loop {
        let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        if unsafe { libc::poll(&mut poll, 1, -1) } < 0 {
            continue;
        }
        if poll.revents & libc::POLLIN == 0 {
            return;
        }
        // SAFETY: the kernel requires zeroes.
        let mut asked: libc::seccomp_notif = unsafe { zeroed() };
        // SAFETY: a structure to write to.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &mut asked) } != 0
        {
            // The caller was killed.
            continue;
        }
        let call = call_of(&asked);
        let link = read_link(format!("/proc/{}/fd/{}", call.thread, call.descriptor)).unwrap_or_default();
        let verdict = if link.starts_with(directory) { judge(&call) } else { Answer::Go };
        let (error, flags) = match verdict {
            Answer::Go => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Fail(error) => (-error, 0),
        };
        let mut reply = libc::seccomp_notif_resp { id: asked.id, val: 0, error, flags };
        // Fails when the caller was killed in between.
        // SAFETY: a structure to read.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &mut reply) };
    }
}

fn call_of(asked: &libc::seccomp_notif) -> Call {
    let number = libc::c_long::from(asked.data.nr);
    let (_, kind) = CALLS.iter().find(|(call, _)| *call == number).expect("the filter has no other");
    let (kind, arguments) = (*kind, asked.data.args);
    let (offset, len) = match kind {
        Kind::Blocks => (arguments[2], arguments[3]),
        Kind::Read | Kind::Write => (arguments[3], arguments[2]),
    };
    Call { kind, offset, len, thread: asked.pid, descriptor: arguments[0] & 0xffff_ffff }
}
