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
#[command(after_help = "Exit status: 0 when `uzswap run` works here with its full function, 1 otherwise.")]
pub struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    /// Whether `uzswap run` works with its full function.
    ok: bool,
    rows: Vec<Row>,
}

pub fn run(arguments: &Arguments) -> Result<i32> {
    let mut rows = paging::rows();
    rows.extend(machine::rows());
    if row::is_complete(&rows) {
        rows.push(trial::row());
    }
    let ok = row::is_complete(&rows);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer_pretty(&mut out, &Answer { ok, rows })?;
        writeln!(out)?;
    } else {
        out.write_all(row::table(&rows).as_bytes())?;
    }
    Ok(if ok { 0 } else { 1 })
}
