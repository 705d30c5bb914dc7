//! The uzswap program.

mod bench;
mod check;
mod embedded;
mod iaa;
mod pages;
mod run;
mod size;
mod top;
mod ways;

use clap::{Parser, Subcommand};

/// Exit status for uzswap's own failures.
const EXIT_FAILED: i32 = 125;

/// Compressed swap in user space: programs in less memory than they need
#[derive(Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  uzswap run --ram 2G -- python3 train.py     run a program in 2 GiB
  uzswap check                                what this machine allows, and how to fix what is missing
  uzswap top                                  what runs under `uzswap run`, and how it does"
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
    /// Measure
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Capture, compress and decompress pages of memory
    #[command(subcommand)]
    Pages(pages::Pages),
    /// Find, configure and test Intel's analytics accelerators
    #[command(subcommand)]
    Iaa(iaa::Iaa),
}

fn main() {
    // No thread of this program breaks unnoticed.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::exit(EXIT_FAILED);
    }));
    let arguments = Arguments::parse();
    let result = match &arguments.verb {
        Verb::Run(arguments) => run::run(arguments),
        Verb::Check(arguments) => check::run(arguments),
        Verb::Top(arguments) => top::run(arguments),
        Verb::Bench(bench) => bench.run().map(|()| 0),
        Verb::Pages(pages) => pages.run().map(|()| 0),
        Verb::Iaa(iaa) => iaa.run().map(|()| 0),
    };
    match result {
        Ok(status) => std::process::exit(status),
        Err(error) => {
            eprintln!("uzswap: {error:#}");
            std::process::exit(EXIT_FAILED);
        }
    }
}
