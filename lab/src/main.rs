//! `uzswap-lab`: measurements of uzswap, for people who work on it or judge it.

mod bench;
mod trace;

use clap::{Parser, Subcommand};
use program::{command_line, run};

/// Measurements of uzswap, alone and beside the kernel
#[derive(Debug, Parser)]
#[command(
    name = "uzswap-lab",
    version,
    arg_required_else_help = true,
    after_help = "Examples:
  uzswap-lab bench store --pages heap.pages --compressor auto,lz4
  uzswap-lab bench usemem --size 1G --ram 512M
  sudo uzswap-lab bench program --versus kernel-zswap -- ./job
  uzswap-lab trace record -o job.trace -- ./job

Exit status: 0; 125 when something is wrong with the arguments or failed, with a message on standard error. `trace record` \
returns its program's own."
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Record which pages a program refers to, and replay that under replacement policies
    #[command(subcommand)]
    Trace(trace::Trace),
    /// `uzswap run`, by which programs are measured
    #[command(hide = true)]
    Run(run::Arguments),
}

fn main() {
    let arguments = command_line::begin::<Arguments>();
    let result = match &arguments.verb {
        Verb::Bench(bench) => bench.run().map(|()| 0),
        Verb::Trace(trace) => trace.run(),
        Verb::Run(arguments) => run::run(arguments),
    };
    command_line::end("uzswap-lab", result)
}
