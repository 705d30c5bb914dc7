//! `uzswap check`: reports what this machine allows and how to fix what is missing, by trying it.

mod machine;
mod paging;
mod row;
mod trial;

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use row::Row;

/// Say what this machine allows, and how to fix what is missing
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 when `uzswap run` works here, even with limits, which the last line names; 1 otherwise."
)]
pub struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    /// Whether `uzswap run` works.
    ok: bool,
    verdict: String,
    rows: Vec<Row>,
}

pub fn run(arguments: &Arguments) -> Result<i32> {
    let mut rows = paging::rows();
    rows.extend(machine::rows());
    if row::is_complete(&rows) {
        rows.push(trial::row());
    }
    let ok = row::is_complete(&rows);
    // Leaves out colours where standard output is no terminal.
    let mut out = anstream::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut out, &Answer { ok, verdict: row::verdict(&rows), rows })?;
        writeln!(out)?;
    } else {
        out.write_all(row::table(&rows).as_bytes())?;
    }
    Ok(if ok { 0 } else { 1 })
}
