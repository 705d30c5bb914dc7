//! `uzswap iaa stats`: the counters of drivers, in running programs and in the kernel.

use std::path::Path;
use std::sync::Arc;

use acomp::{Algorithm, CompressRequest, DecompressRequest, Object, UnitError, UnitResult, PAGE_SIZE};
use anyhow::{bail, Context, Result};
use iaa::{Driver, Iaa, Published, Settings, Traffic};
use idxd::emulated::EmulateSpec;
use idxd::sysfs::Tree;
use serde_json::{json, Map, Value};

use super::place::{DeviceOptions, Machine};
use super::table::Table;
use super::test::pages::{make, Page};

/// Directories of the kernel driver's figures, depending on its version.
const KERNEL: [&str; 2] = ["kernel/debug/iaa-crypto", "kernel/debug/iaa_crypto"];
const PAGES: usize = 256;

/// What the drivers of running programs and of the kernel have counted
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo uzswap iaa stats                     all running programs, and the kernel's iaa_crypto
  sudo uzswap iaa stats --json
  sudo uzswap iaa stats --reset             all of them to zero, in every program and in the kernel
  uzswap iaa stats --emulate devices=4,queues=2   of a short load on emulated devices

Programs' counters can be read by those who may debug them: often only by root.")]
pub struct Arguments {
    /// Set all counters to zero: those of every running program that may be written to, of all
    /// users, and the kernel's. Other measurements that run at that time start from zero as well
    #[arg(long, conflicts_with = "emulate")]
    reset: bool,
    #[command(flatten)]
    place: DeviceOptions,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let machine = arguments.place.open()?;
    let proc = Path::new("/proc");
    // Kept until its counters are shown.
    let _load = match &machine.emulated {
        Some(spec) => Some(load(spec)?),
        None => None,
    };
    if arguments.reset {
        return reset(&machine, proc, arguments.place.json);
    }
    let (mut programs, mut unreadable) = (Vec::new(), Vec::new());
    for program in iaa::published(proc) {
        match program {
            Ok(program) => programs.push(program),
            Err(refusal) => unreadable.push(refusal.to_string()),
        }
    }
    if machine.emulated.is_some() {
        programs.retain(|program| program.process == std::process::id());
        unreadable.clear();
    }
    for refusal in &unreadable {
        eprintln!("uzswap: {refusal}");
    }
    let kernel = kernel(&*machine.tree)?;
    if arguments.place.json {
        let programs: Vec<Value> = programs.iter().map(program_json).collect();
        println!("{}", serde_json::to_string_pretty(&json!({"programs": programs, "kernel": kernel}))?);
        return Ok(());
    }
    for program in &programs {
        show(program);
    }
    if let Some(kernel) = &kernel {
        println!("The kernel's iaa_crypto");
        for (name, value) in kernel["global_stats"].as_object().into_iter().flatten() {
            println!("  {name}: {}", value.as_u64().unwrap_or(0));
        }
        for line in kernel["wq_stats"].as_array().into_iter().flatten() {
            println!("  {}", line.as_str().unwrap_or_default());
        }
    } else if programs.is_empty() {
        println!(
            "No running program uses accelerators, and the kernel's iaa_crypto is not loaded or its debugfs not \
             readable (sudo). `uzswap run --compressor deflate-iaa` starts one."
        );
    }
    Ok(())
}

fn reset(machine: &Machine, proc: &Path, as_json: bool) -> Result<()> {
    let programs = iaa::reset_published(proc)?;
    let tree = &*machine.tree;
    let mut kernel = false;
    if let Some(directory) = KERNEL.iter().find(|directory| tree.list(directory).is_ok()) {
        let path = format!("{directory}/stats_reset");
        tree.write(&path, "1").with_context(|| format!("cannot write {}", tree.shown(&path)))?;
        kernel = true;
    }
    if as_json {
        println!("{}", json!({"reset": {"programs": programs, "kernel": kernel}}));
    } else {
        println!(
            "Counters of {programs} programs{} are zero.",
            if kernel { " and of the kernel" } else { "" }
        );
    }
    Ok(())
}

fn show(program: &Published) {
    let emulated = if program.is_emulated { ", on emulated devices" } else { "" };
    println!("{} ({}){emulated}", program.command, program.process);
    for (name, value) in program.totals.globals() {
        println!("  {name}: {value}");
    }
    let mut table = Table::new(&["QUEUE", "COMP_CALLS", "COMP_BYTES", "DECOMP_CALLS", "DECOMP_BYTES"]);
    for (name, traffic) in &program.queues {
        let figures = [traffic.comp_calls, traffic.comp_bytes, traffic.decomp_calls, traffic.decomp_bytes];
        let [calls, bytes, decomp_calls, decomp_bytes] = figures.map(|figure| figure.to_string());
        table.row([name.clone(), calls, bytes, decomp_calls, decomp_bytes]);
    }
    println!("{table}");
}

fn program_json(program: &Published) -> Value {
    let traffic = |traffic: &Traffic| {
        json!({
            "comp_calls": traffic.comp_calls,
            "comp_bytes": traffic.comp_bytes,
            "decomp_calls": traffic.decomp_calls,
            "decomp_bytes": traffic.decomp_bytes,
        })
    };
    let totals: Map<String, Value> =
        program.totals.globals().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let queues: Map<String, Value> =
        program.queues.iter().map(|(name, counted)| (name.clone(), traffic(counted))).collect();
    json!({
        "pid": program.process,
        "command": program.command,
        "emulated": program.is_emulated,
        "global_stats": totals,
        "wq_stats": queues,
    })
}

/// The kernel driver's figures, if present and readable.
fn kernel(tree: &dyn Tree) -> Result<Option<Value>> {
    let Some(directory) = KERNEL.iter().find(|directory| tree.list(directory).is_ok()) else {
        return Ok(None);
    };
    let read = |name: &str| {
        let path = format!("{directory}/{name}");
        tree.read(&path).with_context(|| format!("cannot read {}", tree.shown(&path)))
    };
    let globals: Map<String, Value> = read("global_stats")?
        .lines()
        .filter_map(|line| {
            let (name, value) = line.trim().split_once(':')?;
            Some((name.trim().to_owned(), value.trim().parse::<u64>().ok()?.into()))
        })
        .collect();
    let queues: Vec<String> = read("wq_stats")?.lines().map(str::to_owned).collect();
    Ok(Some(json!({"global_stats": globals, "wq_stats": queues})))
}

/// Compresses and decompresses some pages on emulated devices, in both modes.
fn load(spec: &EmulateSpec) -> Result<Arc<Driver>> {
    spec.ensure_real_work()?;
    let driver = Arc::new(Driver::emulated(spec, Settings::default())?);
    let pages = make(PAGES);
    let mut algorithms = vec![Iaa::fixed(Arc::clone(&driver))];
    if spec.generation > 1 {
        algorithms.push(Iaa::dynamic(Arc::clone(&driver)));
    }
    for algorithm in algorithms {
        let Ok(mut context) = algorithm.context_for(PAGE_SIZE) else { bail!("no memory for a context") };
        for batch in pages.chunks(8) {
            let sources: Vec<&[u8; PAGE_SIZE]> = batch.iter().map(|page| &page.0).collect();
            let mut packed = vec![[0; PAGE_SIZE]; batch.len()];
            let mut results: Vec<UnitResult> = vec![Err(UnitError::Failed); batch.len()];
            let mut outputs: Vec<&mut [u8]> = packed.iter_mut().map(|page| &mut page[..]).collect();
            context.compress(&mut CompressRequest {
                pages: &sources,
                unit_size: PAGE_SIZE,
                outputs: &mut outputs,
                results: &mut results,
            });
            let shrunk: Vec<(usize, usize)> =
                results.iter().enumerate().filter_map(|(at, result)| Some((at, result.ok()?))).collect();
            let objects: Vec<Object> =
                shrunk.iter().map(|&(at, size)| Object { head: &packed[at][..size], tail: &[] }).collect();
            let mut plain = vec![Page::ZERO; shrunk.len()];
            let mut results: Vec<UnitResult> = vec![Err(UnitError::Failed); shrunk.len()];
            let mut outputs: Vec<&mut [u8]> = plain.iter_mut().map(|page| &mut page.0[..]).collect();
            context.decompress(&mut DecompressRequest {
                objects: &objects,
                outputs: &mut outputs,
                results: &mut results,
            });
            for ((at, _), (page, result)) in shrunk.iter().zip(plain.iter().zip(&results)) {
                if result.is_err() || page.0 != batch[*at].0 {
                    bail!("a page did not come back as it was");
                }
            }
        }
    }
    Ok(driver)
}
