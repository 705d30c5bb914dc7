//! `uzswap pages capture`: the memory of a live process as a corpus.
//!
//! The process runs during the capture, so a page may be torn between two of its writes.
//! Compression does not depend on that.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use sys::maps::Mapping;
use uzswap::PAGE_SIZE;

use crate::top::find;
use crate::top::named::{self, Named};

/// Arguments of `uzswap pages capture`.
#[derive(Debug, clap::Args)]
pub struct CaptureArgs {
    /// The process, or the `uzswap run` whose program is meant. Its user's rights, or
    /// CAP_SYS_PTRACE, are needed.
    #[arg(long)]
    pid: u32,
    /// Where to; rewritten.
    #[arg(short, long)]
    output: PathBuf,
    /// Maximum number of pages.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    max_pages: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Captured {
    pages: u64,
    runs: u64,
    zero_pages: u64,
}

const CHUNK_PAGES: usize = 256;

impl CaptureArgs {
    pub fn run(&self) -> Result<()> {
        let pid = self.program()?;
        let process = Process::open(pid)?;
        let output = File::create(&self.output).with_context(|| self.output.display().to_string())?;
        let mut output = BufWriter::with_capacity(1 << 20, output);
        let captured = capture(&process, self.max_pages, &mut output)?;
        output.flush()?;
        println!(
            "{} pages in {} runs of neighbours; {} zero pages left out",
            captured.pages, captured.runs, captured.zero_pages
        );
        let out = named::run_of(pid).map_or(0, |named| pages_out(&named, pid));
        if out > 0 {
            eprintln!(
                "uzswap: {out} pages of process {pid} are out of memory and not among them; to have them too: \
                 uzswap pause {pid} -- uzswap pages capture --pid {{}} -o {}",
                self.output.display()
            );
        }
        Ok(())
    }

    fn program(&self) -> Result<u32> {
        let pid = self.pid;
        match named::run_of(pid) {
            Some(named) if named.is_run => {
                let chosen = named::program_of(&named.found);
                let chosen = chosen.with_context(|| format!("no process of the run {pid} lives"))?;
                eprintln!("uzswap: {}", chosen.words(pid));
                Ok(chosen.pid)
            }
            None if find::is_uzswap(pid) => {
                eprintln!("uzswap: process {pid} is uzswap itself and no run: these are its own pages");
                Ok(pid)
            }
            _ => Ok(pid),
        }
    }
}

/// Pages of a managed process that are compressed, on disk or staged.
fn pages_out(named: &Named, pid: u32) -> u64 {
    let slots = named.found.snapshot.live().filter(|seen| seen.pid == pid).map(|seen| seen.slot);
    // A paused process keeps its pages in memory and only frames in staging.
    let out = slots.filter(|slot| !slot.is_paused()).map(|slot| {
        let staged = slot.staged_bytes() / PAGE_SIZE as u64;
        slot.stored_pages().saturating_add(slot.disk_pages()).saturating_add(staged)
    });
    out.fold(0, u64::saturating_add)
}

struct Process {
    maps: String,
    pagemap: File,
    memory: File,
}

impl Process {
    fn open(pid: u32) -> Result<Self> {
        ensure!(PathBuf::from(format!("/proc/{pid}")).exists(), "there is no process {pid}");
        let open = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            File::open(&path).context(path)
        };
        let maps = std::io::read_to_string(open("maps")?).with_context(|| format!("/proc/{pid}/maps"))?;
        ensure!(!maps.is_empty(), "process {pid} is a thread of the kernel, or has ended: it has no memory");
        Ok(Process { maps, pagemap: open("pagemap")?, memory: open("mem")? })
    }
}

/// Returns about `count` non-zero anonymous pages of a live process, evenly spread.
///
/// # Errors
/// If the process's memory may not be read.
pub fn sample(pid: u32, count: u64) -> Result<Vec<u8>> {
    let process = Process::open(pid)?;
    let present = || anonymous_pages(&process);
    let step = (present().count() as u64 / count.max(1)).max(1) as usize;
    let mut pages = Vec::new();
    for at in present().step_by(step) {
        let mut page = [0; PAGE_SIZE];
        if process.memory.read_exact_at(&mut page, at).is_ok() && page != [0; PAGE_SIZE] {
            pages.extend_from_slice(&page);
        }
    }
    Ok(pages)
}

/// The addresses of the present anonymous pages.
fn anonymous_pages(process: &Process) -> impl Iterator<Item = u64> + '_ {
    private_ranges(&process.maps).flat_map(chunks).flat_map(|(at, pages)| {
        let mut entries = [[0; 8]; CHUNK_PAGES];
        let is_read =
            process.pagemap.read_exact_at(entries[..pages].as_flattened_mut(), at / PAGE_SIZE as u64 * 8);
        let found = if is_read.is_ok() { pages } else { 0 };
        (0..found)
            .filter(move |page| is_anonymous(u64::from_le_bytes(entries[*page])))
            .map(move |page| at + (page * PAGE_SIZE) as u64)
    })
}

fn chunks(range: Range<u64>) -> impl Iterator<Item = (u64, usize)> {
    let bytes = (CHUNK_PAGES * PAGE_SIZE) as u64;
    let end = range.end;
    range.step_by(bytes as usize).map(move |at| (at, ((end - at).min(bytes) / PAGE_SIZE as u64) as usize))
}

fn capture(process: &Process, max_pages: u64, output: &mut dyn Write) -> Result<Captured> {
    let mut captured = Captured::default();
    let mut last = 0;
    for at in anonymous_pages(process) {
        let mut page = [0; PAGE_SIZE];
        if captured.pages == max_pages {
            break;
        }
        if process.memory.read_exact_at(&mut page, at).is_err() {
            continue;
        }
        if page == [0; PAGE_SIZE] {
            captured.zero_pages += 1;
        } else {
            output.write_all(&page)?;
            captured.pages += 1;
            captured.runs += u64::from(captured.pages == 1 || last + PAGE_SIZE as u64 != at);
            last = at;
        }
    }
    Ok(captured)
}

/// Bits 63 (present) and 61 (file or shared) of an entry of /proc/PID/pagemap.
fn is_anonymous(entry: u64) -> bool {
    entry >> 63 == 1 && entry >> 61 & 1 == 0
}

/// Readable, writable, private mappings in the text of /proc/PID/maps.
fn private_ranges(maps: &str) -> impl Iterator<Item = Range<u64>> + '_ {
    let mappings = maps.lines().filter_map(|line| sys::maps::parse(line.as_bytes()));
    // Only whole pages: the code above counts in pages.
    let is_whole = |one: &Mapping| (one.start | one.end).is_multiple_of(PAGE_SIZE);
    let is_meant = move |one: &Mapping| one.read && one.write && !one.shared && is_whole(one);
    mappings.filter(is_meant).map(|one| one.start as u64..one.end as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn private_writable_mappings_are_looked_at() {
        let maps = "00400000-00401000 r-xp 00000000 fe:00 12 /bin/x\n\
                    00601000-00603000 rw-p 00001000 fe:00 12 /bin/x\n\
                    7f0000000000-7f0000004000 rw-p 00000000 00:00 0 \n\
                    7f1000000000-7f1000004000 rw-s 00000000 00:01 5 /dev/zero\n";
        let ranges: Vec<_> = private_ranges(maps).map(|range| (range.start, range.end)).collect();
        assert_eq!(ranges, [(0x601000, 0x603000), (0x7f00_0000_0000, 0x7f00_0000_4000)]);
    }

    /// Keeps marks of pages, not the pages: copies in this process would be captured too.
    #[derive(Default)]
    struct Marks {
        pages: u64,
        found: Vec<(u64, u64)>,
    }

    const MARK: u64 = 0x5EED_C0DE_0000_0000;

    impl Write for Marks {
        fn write(&mut self, page: &[u8]) -> std::io::Result<usize> {
            assert_eq!(page.len(), PAGE_SIZE);
            let word = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
            // Words of a marked page count up from its start; the middle of a copy does not match.
            if word & !0xF_0000 == MARK {
                self.found.push((self.pages, word >> 16 & 0xF));
            }
            self.pages += 1;
            Ok(page.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn this_process_s_own_pages_are_found() {
        // A unique pattern in neighbouring pages, with a zero page between.
        let mut pattern = vec![0u8; 5 * PAGE_SIZE];
        let first = pattern.as_ptr().align_offset(PAGE_SIZE);
        for page in [0, 1, 3] {
            let at = first + page * PAGE_SIZE;
            for (index, word) in pattern[at..at + PAGE_SIZE].chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&(MARK + ((page as u64) << 16) + index as u64).to_le_bytes());
            }
        }
        let mut marks = Marks::default();
        let captured =
            match Process::open(std::process::id()).and_then(|own| capture(&own, u64::MAX, &mut marks)) {
                Ok(captured) => captured,
                Err(error) => {
                    testkit::skip!("trace", "/proc cannot be read: {error}");
                    return;
                }
            };
        assert_eq!(marks.pages, captured.pages);
        let at = marks.found.windows(3).find(|pages| pages[0].1 == 0 && pages[1].1 == 1 && pages[2].1 == 3);
        let at = at.unwrap_or_else(|| panic!("the pages in their order: {:?}", marks.found));
        assert!(at[1].0 == at[0].0 + 1 && at[2].0 == at[1].0 + 1);
        let own = Process::open(std::process::id()).unwrap();
        let few = capture(&own, 3, &mut Marks::default()).unwrap();
        assert_eq!(few.pages, 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn ranges_of_any_text_are_whole_pages(
            text in prop_oneof!["\\PC{0,100}", "([0-9a-f]{1,17}-[0-9a-f]{1,17} rw-p 0 0:0 0\n){0,5}", "([0-9a-f]{2}000-[0-9a-f]{2}000 rw-p 0 0:0 0\n){0,8}"],
        ) {
            for range in private_ranges(&text) {
                prop_assert!(range.start < range.end && range.start % 4096 == 0 && range.end % 4096 == 0);
            }
        }
    }
}
