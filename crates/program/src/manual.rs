//! Manual pages and completions, for packages and for users of `cargo install`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::Command;
use clap_complete::Shell;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  uzswap completions bash > ~/.local/share/bash-completion/completions/uzswap
  uzswap completions zsh > ~/.zfunc/_uzswap         with `fpath+=~/.zfunc` before compinit
  uzswap completions fish > ~/.config/fish/completions/uzswap.fish")]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]))]
    shell: String,
}

/// Write manual pages
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  uzswap man ~/.local/share/man/man1 && man uzswap-run")]
pub struct ManArguments {
    /// Directory for the pages, one for each command
    directory: PathBuf,
}

pub fn completions(arguments: &CompletionsArguments, mut command: Command) -> Result<()> {
    let shell: Shell = arguments.shell.parse().expect("clap_complete has these");
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "uzswap", &mut text);
    std::io::stdout().write_all(&text).context("cannot print completions")
}

pub fn man(arguments: &ManArguments, command: Command) -> Result<()> {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut open = vec![command];
    while let Some(command) = open.pop() {
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        open.extend(command.get_subcommands().filter(|one| !one.is_hide_set()).cloned());
        let page = clap_mangen::Man::new(command);
        let page = page.source(concat!("uzswap ", env!("CARGO_PKG_VERSION"))).manual("uzswap");
        let mut text = Vec::new();
        page.render(&mut text)?;
        // clap puts examples and explanations into EXTRA; readers expect NOTES.
        let text = String::from_utf8(text)?.replace("\n.SH EXTRA\n", "\n.SH NOTES\n");
        let file = directory.join(format!("{name}.1"));
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
