//! The report and `top` count stored pages by form: over the whole tree, each page once.

mod support;

use std::collections::BTreeMap;

use serde_json::Value;
use support::{managed, Ran, Scratch};

/// Objects, text, numbers and a repeated word, in half of the memory they need, read repeatedly.
const SCRIPT: &str = r#"
import array, os, sys
objects = [{'number': i, 'name': 'k%d' % i} for i in range(120000)]
text = [(' '.join(str(i * j % 9973) + 'word' for j in range(600)) * 2).encode() for i in range(4000)]
numbers = [array.array('q', range(i << 20, (i << 20) + 40960, 10)) for i in range(800)]
same = bytearray(b'uzswap!\n') * (4 << 20 >> 3)
def look():
    found = sum(o['number'] for o in objects) + sum(len(t) + t[-2] for t in text)
    return found + sum(n[9] for n in numbers) + same[4096]
if len(sys.argv) == 1: print(look())
elif sys.argv[1] == 'fork':
    # Children that change nothing, and die young or after a look.
    for i in range(4):
        child = os.fork()
        if child == 0: os._exit(look() % 7 if i == 3 else i)
        os.waitpid(child, 0)
    print(look())
else:
    print(look(), flush=True)
    os.execvp('python3', ['python3', sys.argv[0]])
"#;

fn forms(report: &Value) -> BTreeMap<String, u64> {
    serde_json::from_value(report["forms"].clone()).unwrap_or_else(|error| panic!("{error} in {report:#}"))
}

/// The forms' sum is zswpout plus a few per cent that a fault took back during the store.
fn assert_each_once(ran: &Ran) {
    ran.assert_paged();
    let (sum, stored) = (forms(&ran.report).values().sum::<u64>(), ran.number("zswpout"));
    assert!(stored > 2000, "hardly anything was evicted: {ran}");
    assert!((stored..=stored + stored / 10 + 100).contains(&sum), "{sum} forms of {stored} pages: {ran}");
}

#[test]
fn a_program_with_mixed_data_has_pages_of_every_kind() {
    let scratch = Scratch::new("forms");
    let script = scratch.write("job.py", SCRIPT);
    let Some(ran) = managed("48M", &["-v"], &["python3", &script]) else { return };
    assert_each_once(&ran);
    let counts = forms(&ran.report);
    for form in ["t16", "lz", "numeric", "same"] {
        assert!(counts[form] > 100, "{form}: {counts:?}");
    }
    assert_eq!(counts["raw"], 0, "raw pages could not be written back");
    let manual = include_str!("../../../docs/user/report.md");
    for name in ran.report.as_object().unwrap().keys() {
        assert!(manual.contains(&format!("`{name}`")), "docs/user/report.md says nothing of {name}");
    }
    ran.assert_says(&["stored as ", " t16 "]);

    // The sum also holds after exec and fork. Each forked process's pool takes 30 MiB.
    for (way, ram) in [("exec", "48M"), ("fork", "72M")] {
        let Some(ran) = managed(ram, &["-q"], &["python3", &script, way]) else { return };
        assert_each_once(&ran);
        assert!(forms(&ran.report)["t16"] > 100, "{ran}");
    }
}

#[test]
fn a_compressor_of_one_form_is_told_apart_from_repeated_words() {
    let scratch = Scratch::new("form");
    let script = scratch.write("job.py", SCRIPT);
    let Some(ran) = managed("48M", &["-v", "--compressor", "zstd:1"], &["python3", &script]) else { return };
    assert_each_once(&ran);
    let counts = forms(&ran.report);
    assert_eq!(counts.keys().map(|name| &**name).collect::<Vec<_>>(), ["raw", "same", "zstd"]);
    assert!(counts["zstd"] > 1000 && counts["same"] > 100, "{counts:?}");
    assert!(!ran.said.contains("stored as"), "{ran}");
}

/// Builds a heap of three times its budget, large enough that denser pages save more than their
/// codebooks cost; rests until it has shrunk or for a minute, and reads it all.
const RESTING: &str = r#"
import gc, time
gc.disable()
objects = [{'number': i, 'name': 'k%d' % i, 'words': ['w%d' % (i % 97), str(i) * 3]} for i in range(300000)]
def resident(): return next(int(line.split()[1]) for line in open('/proc/self/status') if 'RssAnon' in line)
before, end = resident(), time.monotonic() + 60
while resident() > before - 512 and time.monotonic() < end: time.sleep(0.05)
print(sum(o['number'] + len(o['words'][1]) + len(o['name']) for o in objects))
"#;

#[test]
fn pages_at_rest_become_denser_where_there_are_two_tiers() {
    let scratch = Scratch::new("tiers");
    let script = scratch.write("job.py", RESTING);
    let options = ["-v", "--compressor", "auto-t16h", "--verify"];
    let Some(ran) = managed("56M", &options, &["python3", &script]) else { return };
    let expected: u64 =
        (0..300_000u64).map(|i| i + 3 * i.to_string().len() as u64 + format!("k{i}").len() as u64).sum();
    assert_eq!(ran.printed.trim(), expected.to_string());
    assert!(ran.number("promoted") > 500, "{ran}");
    ran.assert_says(&["became denser"]);
    assert_each_once(&ran);
}
