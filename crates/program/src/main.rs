//! The uzswap program.

#[macro_use]
mod messages;

mod bench;
mod check;
mod device;
mod drawing;
mod embedded;
mod iaa;
mod manual;
mod markup;
mod mistyped;
mod pages;
mod pause;
mod place;
mod plain;
mod rights;
mod run;
mod size;
mod standard;
mod top;
mod trace;
mod ways;

use clap::{CommandFactory, Parser, Subcommand};

/// Exit status for uzswap's own failures.
const EXIT_FAILED: i32 = 125;

/// Compressed swap in user space: programs in less memory than they need
#[derive(Debug, Parser)]
#[command(
    name = "uzswap",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  uzswap run --ram 2G -- python3 train.py     run a program in 2 GiB
  uzswap check                                what this machine allows, how to fix what is missing
  uzswap top                                  what runs under `uzswap run`, and how it does

Exit status: 0; 125 when something is wrong with the arguments or failed, with a message on standard error. `run` returns \
its program's own, and `check` whether everything is there."
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::Arguments),
    Check(check::Arguments),
    Top(top::Arguments),
    Pause(pause::PauseArguments),
    Resume(pause::ResumeArguments),
    /// Measure
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Record which pages a program refers to, and replay that under replacement policies
    #[command(subcommand)]
    Trace(trace::Trace),
    /// Capture, compress and decompress pages of memory
    #[command(subcommand)]
    Pages(pages::Pages),
    /// Swap on compressed memory: a block device for whole systems
    #[command(subcommand)]
    Device(device::Device),
    /// Find, configure and test Intel's analytics accelerators
    #[command(subcommand)]
    Iaa(iaa::Iaa),
    Completions(manual::CompletionsArguments),
    #[command(hide = true)]
    Man(manual::ManArguments),
}

/// The program that a command line of `uzswap run` starts; empty for other command lines.
fn program_of(words: &[std::ffi::OsString]) -> Vec<std::ffi::OsString> {
    match Arguments::try_parse_from(words) {
        Ok(Arguments { verb: Verb::Run(arguments) }) => arguments.program().to_vec(),
        _ => Vec::new(),
    }
}

/// Exit status when the reader of standard output has closed its end, as a shell gives it for
/// SIGPIPE.
const EXIT_UNREAD: i32 = 128 + libc::SIGPIPE;

fn main() {
    if let Err(error) = rights::give_up() {
        eprintln!("uzswap: cannot give up the capabilities of its file: {error}");
        std::process::exit(EXIT_FAILED);
    }
    // No thread of this program breaks unnoticed.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        // println! knows no other way.
        if text.starts_with("failed printing to stdout") && is_unread() {
            std::process::exit(EXIT_UNREAD);
        }
        print(info);
        std::process::exit(EXIT_FAILED);
    }));
    let words: Vec<_> = std::env::args_os().collect();
    let arguments = Arguments::try_parse_from(&words).unwrap_or_else(|error| {
        let error = mistyped::corrected(error, &words, &Arguments::command());
        // Help and the version were asked for; anything else is a mistake, and not the status of a
        // program's own.
        let _ = error.print();
        std::process::exit(if error.use_stderr() { EXIT_FAILED } else { 0 });
    });
    let result = match &arguments.verb {
        Verb::Run(arguments) => run::run(arguments),
        Verb::Check(arguments) => check::run(arguments),
        Verb::Top(arguments) => top::run(arguments),
        Verb::Pause(arguments) => pause::pause(arguments),
        Verb::Resume(arguments) => pause::resume(arguments),
        Verb::Bench(bench) => bench.run().map(|()| 0),
        Verb::Trace(trace) => trace.run(),
        Verb::Pages(pages) => pages.run().map(|()| 0),
        Verb::Device(device) => device.run(),
        Verb::Iaa(iaa) => iaa.run().map(|()| 0),
        Verb::Completions(arguments) => manual::completions(arguments, Arguments::command()).map(|()| 0),
        Verb::Man(arguments) => manual::man(arguments, Arguments::command()).map(|()| 0),
    };
    match result {
        Ok(status) => std::process::exit(status),
        Err(error) if is_broken_pipe(&error) && is_unread() => std::process::exit(EXIT_UNREAD),
        Err(error) => {
            eprintln!("uzswap: {error:#}");
            std::process::exit(EXIT_FAILED);
        }
    }
}

/// Whether an error is that of a pipe without a reader.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of_pipe = |kind: std::io::ErrorKind| kind == std::io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json).is_some_and(of_pipe)
    })
}

/// Whether nothing reads what this program prints any more: `uzswap ... | head` has what it wants.
fn is_unread() -> bool {
    let mut output = libc::pollfd { fd: 1, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut output, 1, 0) == 1 && output.revents & libc::POLLERR != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines are wrapped at 100 columns; what is wrapped by hand before comes out ragged.
    #[test]
    fn help_keeps_to_its_width() {
        let mut open = vec![Arguments::command()];
        while let Some(command) = open.pop() {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
                let is_part = line.is_empty() || line.starts_with(' ') || line.ends_with(':');
                let fits = if is_part { line.len() <= 100 } else { next.is_empty() };
                assert!(fits, "help of {}: {line:?}", command.get_name());
            }
            open.extend(command.get_subcommands().cloned());
        }
    }
}
