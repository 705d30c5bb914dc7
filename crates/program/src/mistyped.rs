//! Suggestions for mistyped options and commands. clap's similarity misses words of three letters
//! (`--rma`) and suggests passing the option to the program.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::Command;

/// Maximum edits between a mistyped and a known option. A transposition is one edit.
const EDITS_MAX: usize = 2;

/// Adds to an error about an unknown option or command the most similar one of the command that
/// `words` name, where clap suggests none.
pub fn corrected(mut error: clap::Error, words: &[OsString], command: &Command) -> clap::Error {
    let (unknown, suggested) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        _ => return error,
    };
    let Some(ContextValue::String(typed)) = error.get(unknown) else { return error };
    if error.get(suggested).is_some() {
        return error;
    }
    let command = innermost(command, words);
    if let ContextKind::InvalidSubcommand = unknown {
        if let Some(name) =
            nearest(typed, command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name))
        {
            error.insert(suggested, ContextValue::Strings(vec![name.to_owned()]));
        }
    } else if let Some(option) = similar(typed, command) {
        error.remove(ContextKind::Suggested);
        error.insert(suggested, ContextValue::String(option));
    }
    error
}

fn innermost<'a>(command: &'a Command, words: &[OsString]) -> &'a Command {
    let names = words.iter().skip(1).map_while(|word| word.to_str().filter(|word| !word.starts_with('-')));
    let found = names.scan(command, |at, name| {
        *at = at.find_subcommand(name)?;
        Some(*at)
    });
    found.last().unwrap_or(command)
}

fn similar(unknown: &str, command: &Command) -> Option<String> {
    let typed = unknown.split('=').next()?.strip_prefix("--")?;
    let known =
        command.get_arguments().filter(|option| !option.is_hide_set()).filter_map(|option| option.get_long());
    nearest(typed, known).map(|name| format!("--{name}"))
}

fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (edits, name) = known.map(|name| (strsim::osa_distance(typed, name), name)).min()?;
    (edits <= EDITS_MAX && edits < typed.len()).then_some(name)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn the_nearest_option_of_the_named_command_is_suggested() {
        let run = Command::new("run").args(["ram", "report", "swap"].map(|name| Arg::new(name).long(name)));
        let command = Command::new("uzswap").subcommand(run);
        let words = ["uzswap", "run", "--rma"].map(OsString::from);
        let run = innermost(&command, &words);
        assert_eq!(run.get_name(), "run");
        for (typed, suggested) in [
            ("--rma", Some("--ram")),
            ("--ran=3", Some("--ram")),
            ("--raport", Some("--report")),
            ("--swpa", Some("--swap")),
            ("--frobnicate", None),
            ("-r", None),
            ("--", None),
        ] {
            assert_eq!(similar(typed, run).as_deref(), suggested, "{typed}");
        }
    }
}
