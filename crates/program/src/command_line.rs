//! Rights, arguments, messages and exit statuses of uzswap's programs.

use anyhow::Result;
use clap::{CommandFactory, Parser};

use crate::{mistyped, rights};

/// Exit status for uzswap's own failures.
pub const EXIT_FAILED: i32 = 125;

/// Exit status when standard output has no reader: the shell's value for SIGPIPE.
const EXIT_UNREAD: i32 = 128 + libc::SIGPIPE;

/// Gives up the capabilities of the program's file, makes panics of any thread end the process, and
/// parses the arguments. Exits on wrong arguments, `--help` and `--version`.
pub fn begin<A: Parser + CommandFactory>() -> A {
    if let Err(error) = rights::give_up() {
        eprintln!("uzswap: cannot give up the capabilities of its file: {error}");
        std::process::exit(EXIT_FAILED);
    }
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        // println! reports a closed pipe only by a panic.
        if text.starts_with("failed printing to stdout") && is_unread() {
            std::process::exit(EXIT_UNREAD);
        }
        print(info);
        std::process::exit(EXIT_FAILED);
    }));
    let words: Vec<_> = std::env::args_os().collect();
    A::try_parse_from(&words).unwrap_or_else(|error| {
        let error = mistyped::corrected(error, &words, &A::command());
        // A mistake's status differs from a program's own.
        let _ = error.print();
        std::process::exit(if error.use_stderr() { EXIT_FAILED } else { 0 });
    })
}

/// Exits with the status, or prints the error and exits with [`EXIT_FAILED`].
pub fn end(program: &str, result: Result<i32>) -> ! {
    match result {
        Ok(status) => std::process::exit(status),
        Err(error) if is_broken_pipe(&error) && is_unread() => std::process::exit(EXIT_UNREAD),
        Err(error) => {
            eprintln!("{program}: {error:#}");
            std::process::exit(EXIT_FAILED);
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of_pipe = |kind: std::io::ErrorKind| kind == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json).is_some_and(of_pipe)
    })
}

/// Returns whether standard output is a pipe without a reader, as after `uzswap ... | head`.
fn is_unread() -> bool {
    let mut output = libc::pollfd { fd: 1, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut output, 1, 0) == 1 && output.revents & libc::POLLERR != 0 }
}
