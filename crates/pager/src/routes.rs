//! Measures the routes of a page: the files whose functions have it in hand while it leaves and
//! while it returns.
//!
//! The thread runs with the processor's trap flag, so that a signal handler sees the address of
//! every instruction. objdump(1) finds the file and line of each, of inlined code, too. A function
//! that ran has the page in hand if its signature, or the type whose method it is, names one of
//! [`IN_HAND`]: so no forgotten mark can drop a file from the route, and no document can add one.
//! Functions without such a type return only a bool or a figure.

use std::arch::asm;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use address_space::units::BLOCK_PAGES;

use crate::fault::{Fault, Handler};
use crate::testing::{pager_with_gap, read};

/// Types that stand for a page, its place or its lock. `units.rs` defines the first six and is not
/// counted, because every file that has a page runs its code.
const IN_HAND: [&str; 20] = [
    "PageNumber",
    "BlockNumber",
    "PageMask",
    "RunMask",
    "PageRun",
    "SlotNumber",
    "Slot",
    "EmptySlot",
    "QueuedSlot",
    "ReadySlot",
    "Extent",
    "Frame",
    "Frames",
    "FrameCache",
    "Block",
    "BlockGuard",
    "RunGuard",
    "Coherent",
    "Taken",
    "Fault",
];

const OUT_FILES_MAX: usize = 15;
const IN_FILES_MAX: usize = 10;
const MARKS: [&str; 2] =
    ["<!-- The test in crates/pager/src/routes.rs writes this list. -->\n\n", "\n<!-- Its end. -->"];

/// The order in which the program's instructions first ran, by their place in the text.
struct Trace {
    /// Where the program lies in memory.
    base: usize,
    text: usize,
    order: Box<[AtomicU32]>,
}

static TRACE: OnceLock<Trace> = OnceLock::new();
static STEPS: AtomicU32 = AtomicU32::new(0);

extern "C" fn note(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes the context of the trapped thread.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let at = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    let Some(trace) = TRACE.get() else { return };
    if let Some(order) = trace.order.get(at.wrapping_sub(trace.text)) {
        let now = STEPS.fetch_add(1, Ordering::Relaxed) + 1;
        let _ = order.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn trace() -> &'static Trace {
    TRACE.get_or_init(|| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = std::env::current_exe().unwrap();
        let own: Vec<_> = maps.lines().filter(|line| line.ends_with(own.to_str().unwrap())).collect();
        let range = |line: &str| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            [start, end].map(|end| usize::from_str_radix(end, 16).unwrap())
        };
        let text = own.iter().find(|line| line.contains(" r-xp ")).expect("the program's text");
        let [start, end] = range(text);
        // SAFETY: all zeroes is a valid action, and the handler only writes atomics.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()), 0);
        }
        let order = std::iter::repeat_with(|| AtomicU32::new(0)).take(end - start).collect();
        Trace { base: range(own[0])[0], text: start, order }
    })
}

/// Addresses in the program's file of the instructions that `act` runs, in the order of their first
/// run.
fn traced(act: impl FnOnce()) -> Vec<usize> {
    let trace = trace();
    trace.order.iter().for_each(|order| order.store(0, Ordering::Relaxed));
    // SAFETY: sets the trap flag, whose signal is handled.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    act();
    // SAFETY: clears it.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    let order = trace.order.iter().map(|order| order.load(Ordering::Relaxed));
    let mut ran: Vec<_> = order.enumerate().filter(|(_, order)| *order != 0).collect();
    ran.sort_unstable_by_key(|(_, order)| *order);
    ran.into_iter().map(|(at, _)| trace.text - trace.base + at).collect()
}

/// The file and line of each address that has one, by the program's line table.
fn lines_of(addresses: &[usize]) -> Vec<(String, usize)> {
    let own = std::env::current_exe().unwrap();
    let table = Command::new("objdump").arg("--dwarf=decodedline").arg(own).output().unwrap().stdout;
    let table = String::from_utf8_lossy(&table);
    let (mut rows, mut file) = (Vec::new(), "");
    for row in table.lines() {
        let mut words = row.split_whitespace();
        match (words.next(), words.next(), words.next().and_then(|word| word.strip_prefix("0x"))) {
            (Some(path), None, None) => file = path.trim_end_matches("[++]").trim_end_matches(':'),
            (Some(_), Some(line), Some(at)) => {
                // No line: the end of a function, or code of none.
                rows.push((usize::from_str_radix(at, 16).unwrap(), file, line.parse().unwrap_or(0)));
            }
            _ => {}
        }
    }
    rows.sort_by_key(|(at, ..)| *at);
    let row_of = |at: &usize| rows[..rows.partition_point(|row| row.0 <= *at)].last();
    addresses.iter().filter_map(row_of).map(|(_, file, line)| (file.to_string(), *line)).collect()
}

/// The lines of each function of a file, and its signature behind the head of its `impl`.
fn functions(path: &Path) -> Vec<(RangeInclusive<usize>, String)> {
    let text = std::fs::read_to_string(path).unwrap();
    let (mut found, mut of, mut open) = (Vec::new(), "", None::<(usize, String, String)>);
    for (number, line) in (1..).zip(text.lines()) {
        if !line.starts_with([' ', '}']) {
            of = if line.starts_with("impl") { line } else { "" };
        }
        let begins = line.trim_start().split_once("fn ").is_some_and(|(before, _)| {
            before
                .split_whitespace()
                .all(|word| word.starts_with("pub") || ["unsafe", "extern", "\"C\""].contains(&word))
        });
        if begins && open.is_none() {
            let end = line[..line.len() - line.trim_start().len()].to_owned() + "}";
            open = Some((number, end, of.to_owned()));
        }
        if let Some((begun, end, signature)) = &mut open {
            if number == *begun || !signature.ends_with('{') {
                signature.push(' ');
                signature.push_str(line);
            }
            if line == *end || signature.ends_with(';') {
                found.push((*begun..=number, std::mem::take(signature)));
                open = None;
            }
        }
    }
    found
}

/// The files that have the page in hand while `act` runs, in the order of their first calls.
fn route(act: impl FnOnce()) -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let (mut route, mut seen) = (Vec::new(), BTreeSet::new());
    for (file, line) in lines_of(&traced(act)) {
        let Some(name) = ["pager/src", "address_space/src"].iter().find_map(|source| {
            let name = file[file.rfind(source)?..].to_owned();
            (!name.ends_with("/units.rs") && !name.ends_with("/routes.rs")).then_some(name)
        }) else {
            continue;
        };
        if route.contains(&name) || !seen.insert((name.clone(), line)) {
            continue;
        }
        let functions = functions(&crates.join(&name));
        let function = functions.into_iter().find(|(lines, _)| lines.contains(&line));
        let has_page = |signature: &str| {
            let mut words = signature.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.any(|word| IN_HAND.contains(&word))
        };
        if function.is_some_and(|(_, signature)| has_page(&signature)) {
            route.push(name);
        }
    }
    route
}

#[test]
fn a_page_passes_few_files() {
    if Command::new("objdump").arg("--version").output().is_err() {
        return testkit::skip!("tool", "no objdump");
    }
    // One page of a block: each instruction takes microseconds.
    let Some((pager, base)) = pager_with_gap(1, 1..BLOCK_PAGES) else { return };
    let out = route(|| {
        assert!(pager.reclaimer.reclaim_step(), "moves the block out");
        assert!(pager.reclaimer.reclaim_step(), "compresses it");
    });
    assert_eq!(pager.store().stored_pages(), 1);
    let page = sys::arena::take(sys::PAGE_SIZE, sys::PAGE_SIZE).unwrap().as_ptr() as usize;
    let mut handler = Handler::new(0, page);
    let fault = Fault { page: base.page(0), write: false, thread: 1, read_ns: sys::now_ns() };
    let back = route(|| pager.service.serve(&mut handler, fault));
    assert_eq!((pager.store().stored_pages(), read(base, 0)), (0, 1));

    let list = |files: &[String]| files.iter().map(|file| format!("- `{file}`\n")).collect::<String>();
    let text =
        format!("Out, {} files:\n\n{}\nIn, {} files:\n\n{}", out.len(), list(&out), back.len(), list(&back));
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/pager.md");
    let whole = std::fs::read_to_string(&document).unwrap();
    let (before, rest) = whole.split_once(MARKS[0]).expect("the list's beginning");
    let (there, after) = rest.split_once(MARKS[1]).expect("the list's end");
    if std::env::var_os("UZSWAP_TEST_WRITE").is_some() {
        std::fs::write(&document, [before, MARKS[0], &text, MARKS[1], after].concat()).unwrap();
    } else {
        // The compiler may leave an inlined function without a line of its own.
        let (out_there, back_there) = there.split_once("\nIn, ").expect("two lists");
        let is_listed = |there: &str, file: &String| there.contains(&format!("- `{file}`\n"));
        let is_right = out.iter().all(|file| is_listed(out_there, file))
            && back.iter().all(|file| is_listed(back_there, file));
        assert!(is_right, "write the list with UZSWAP_TEST_WRITE=1, not {there} but {text}");
    }
    assert!((5..=OUT_FILES_MAX).contains(&out.len()), "{text}");
    assert!((5..=IN_FILES_MAX).contains(&back.len()), "{text}");
}
