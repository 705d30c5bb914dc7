//! The uzswap program without its `main`, so that `uzswap-lab` can run programs by the same code.

#[macro_use]
mod messages;

mod advise;
mod check;
pub mod command_line;
mod device;
mod embedded;
mod environment;
mod kernel_features;
mod manual;
pub mod markup;
mod mistyped;
pub mod pages;
mod pause;
mod plain;
mod rights;
pub mod run;
pub mod size;
mod standard;
mod stat;
mod top;
mod trial_task;

use clap::{CommandFactory, Parser, Subcommand};

/// Compressed swap in user space: programs in less memory than they need
#[derive(Debug, Parser)]
#[command(
    name = "uzswap",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  uzswap run --ram 2G -- python3 train.py     run a program in 2 GiB
  uzswap attach --ram 2G 1234                 the same for a process that runs already
  uzswap advise -- ./job                      what less memory costs, by trying it
  uzswap check                                what this machine allows, how to fix what is missing
  uzswap top                                  what runs under `uzswap run`, and how it does

The documents are in share/doc/uzswap beside the program's bin, or in docs of the sources.

Exit status: 0; 125 when something is wrong with the arguments or failed, with a message on standard error. `run` returns \
its program's own, `check` 1 where `run` does not work, and `advise` 1 where it finds no budget."
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(run::Arguments),
    Attach(run::attached::Arguments),
    Detach(run::attached::DetachArguments),
    Advise(advise::Arguments),
    Check(check::Arguments),
    Top(top::Arguments),
    Pause(pause::PauseArguments),
    /// Resume paging after `uzswap pause`
    Resume(pause::Common),
    /// Capture, compress and decompress pages of memory
    #[command(subcommand)]
    Pages(pages::Pages),
    /// Swap on compressed memory: a block device for whole systems
    #[command(subcommand)]
    Device(device::Device),
    /// Find, configure and test Intel's analytics accelerators
    #[cfg(feature = "iaa")]
    #[command(subcommand)]
    Iaa(iaa_command::Iaa),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
    #[command(hide = true)]
    TrialTask(trial_task::Arguments),
    /// Of builds with the feature iaa
    #[cfg(not(feature = "iaa"))]
    #[command(hide = true, disable_help_flag = true)]
    Iaa {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
}

/// Returns the program that a command line of `uzswap run` starts, or names the process of an
/// `uzswap attach`; empty for other commands.
fn program_of(words: &[std::ffi::OsString]) -> Vec<std::ffi::OsString> {
    match Arguments::try_parse_from(words) {
        Ok(Arguments { verb: Verb::Run(arguments) }) => arguments.program().to_vec(),
        Ok(Arguments { verb: Verb::Attach(arguments) }) => vec![arguments.named().into()],
        _ => Vec::new(),
    }
}

/// Runs the command of this process's arguments and exits.
pub fn main() -> ! {
    let arguments = command_line::begin::<Arguments>();
    let result = match &arguments.verb {
        Verb::Run(arguments) => run::run(arguments),
        Verb::Attach(arguments) => run::attached::attach(arguments),
        Verb::Detach(arguments) => run::attached::detach(arguments),
        Verb::Advise(arguments) => advise::advise(arguments),
        Verb::Check(arguments) => check::run(arguments),
        Verb::Top(arguments) => top::run(arguments),
        Verb::Pause(arguments) => pause::pause(arguments),
        Verb::Resume(arguments) => pause::resume(arguments),
        Verb::Pages(pages) => pages.run().map(|()| 0),
        Verb::Device(device) => device.run(),
        #[cfg(feature = "iaa")]
        Verb::Iaa(iaa) => iaa.run().map(|()| 0),
        Verb::Completions(arguments) => manual::completions(arguments, Arguments::command()).map(|()| 0),
        Verb::Man(arguments) => manual::man(arguments, Arguments::command()).map(|()| 0),
        Verb::TrialTask(arguments) => arguments.run().map(|()| 0),
        #[cfg(not(feature = "iaa"))]
        Verb::Iaa { words } => Err(anyhow::anyhow!(
            "`uzswap iaa` is left out of this build, as accelerators are; the Debian package has them, or:\n    cargo run --release --features iaa -- iaa {}",
            words.join(std::ffi::OsStr::new(" ")).to_string_lossy()
        )),
    };
    command_line::end("uzswap", result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap wraps lines at 100 columns; longer hand-wrapped lines come out ragged.
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
