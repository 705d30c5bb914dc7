//! The page codecs on heaps captured from real running programs: every page round-trips, all
//! instruction sets write the same bytes and read each other's, and `auto` is never behind LZ4.

mod support;

use acomp::{
    CompressRequest, Context, DecompressRequest, Object, Page, Registry, UnitResult, MAX_BATCH, PAGE_SIZE,
};
use pagecodec::Isa;
use support::{command, has, printed, uzswap, Ran, Scratch, Started};

/// Maximum pages of a heap, consecutive in runs.
const PAGES: &str = "6000";
/// A smaller heap proves nothing.
const PAGES_MIN: usize = 1000;

/// Starts a command, waits for a line with `ready`, and captures its heap; `None` if impossible.
fn heap(name: &str, ready: &str, words: &[&str]) -> Option<Vec<Page>> {
    if !has(words[0]) {
        return None;
    }
    let scratch = Scratch::new(&format!("heap-{name}"));
    let mut job = Started::new(command(words).current_dir(scratch.path("")));
    assert!(std::iter::from_fn(|| job.next_line()).any(|line| line.contains(ready)), "{name} is not {ready}");
    let (file, pid) = (scratch.text("heap.pages"), job.pid().to_string());
    let captured =
        Ran::of(uzswap().args(["pages", "capture", "--max-pages", PAGES, "--pid", &pid, "-o", &file]));
    if captured.status != Some(0) && captured.said.contains("ermi") {
        testkit::skip!("tool", "{}", captured.said);
        return None;
    }
    captured.assert_status(0);
    let bytes = std::fs::read(&file).expect("the capture");
    let (pages, rest) = bytes.as_chunks::<PAGE_SIZE>();
    assert!(rest.is_empty() && pages.len() >= PAGES_MIN, "{name}: {} pages", pages.len());
    Some(pages.to_vec())
}

fn context(name: &str) -> Box<dyn Context> {
    let mut registry = Registry::new();
    codecs::register_all(&mut registry);
    registry.find(name).expect("registered").context().expect("memory")
}

fn objects(context: &mut dyn Context, pages: &[Page]) -> Vec<Vec<u8>> {
    let mut objects = Vec::new();
    let mut space = [[0u8; PAGE_SIZE]; MAX_BATCH];
    for batch in pages.chunks(MAX_BATCH) {
        let sources: Vec<&Page> = batch.iter().collect();
        let mut outputs: Vec<&mut [u8]> = space[..batch.len()].iter_mut().map(|slot| &mut slot[..]).collect();
        let mut results: [UnitResult; MAX_BATCH] = [Ok(0); MAX_BATCH];
        context.compress(&mut CompressRequest {
            pages: &sources,
            unit_size: PAGE_SIZE,
            outputs: &mut outputs,
            results: &mut results[..batch.len()],
        });
        for ((page, space), result) in batch.iter().zip(&space).zip(results) {
            objects.push(result.map_or_else(|_| page.to_vec(), |len| space[..len].to_vec()));
        }
    }
    objects
}

fn check(context: &mut dyn Context, pages: &[Page], objects: &[Vec<u8>], what: &str) {
    for (number, (page, object)) in pages.iter().zip(objects).enumerate() {
        if object.len() == PAGE_SIZE {
            continue;
        }
        let mut back = [0x5a; PAGE_SIZE];
        let mut results = [Ok(0)];
        context.decompress(&mut DecompressRequest {
            objects: &[Object::whole(object)],
            outputs: &mut [&mut back],
            results: &mut results,
        });
        assert_eq!(results[0], Ok(PAGE_SIZE), "{what}, page {number}");
        assert!(back == *page, "{what}: page {number} came back as another");
    }
}

fn size(objects: &[Vec<u8>]) -> usize {
    objects.iter().map(Vec::len).sum()
}

fn keeps_its_promises(name: &str, ready: &str, command: &[&str]) {
    let Some(pages) = heap(name, ready, command) else { return };
    for family in ["t16", "auto"] {
        let forced = |isa: Isa| format!("{family}:{isa}");
        let portable = objects(context(&forced(Isa::Portable)).as_mut(), &pages);
        for isa in Isa::available() {
            let own = objects(context(&forced(isa)).as_mut(), &pages);
            assert!(own == portable, "{name}: {family} writes other bytes with {isa}");
            check(context(&forced(isa)).as_mut(), &pages, &portable, &format!("{name}, {family}:{isa}"));
        }
    }
    let (auto, lz4) = (objects(context("auto").as_mut(), &pages), objects(context("lz4").as_mut(), &pages));
    check(context("lz4").as_mut(), &pages, &lz4, &format!("{name}, lz4"));
    println!("{name}: {} pages, auto {} bytes, lz4 {}", pages.len(), size(&auto), size(&lz4));
    assert!(size(&auto) * 100 <= size(&lz4) * 102, "{name}: auto {} bytes, lz4 {}", size(&auto), size(&lz4));
    // Codebooks are trained on the way: later sets must still read objects of the first round.
    for isa in Isa::available() {
        let mut dense = context(&format!("t16h:{isa}"));
        let (first, second) = (objects(dense.as_mut(), &pages), objects(dense.as_mut(), &pages));
        check(dense.as_mut(), &pages, &second, &format!("{name}, t16h:{isa}"));
        check(dense.as_mut(), &pages, &first, &format!("{name}, t16h:{isa}, first round"));
        assert!(size(&second) < size(&auto), "{name}: t16h {} bytes, auto {}", size(&second), size(&auto));
    }
}

#[test]
fn cpython() {
    let job =
        "t={i:{'a':i,'b':str(i)*2,'c':[i,i+.5]} for i in range(40000)}; print('ready',flush=True); input()";
    keeps_its_promises("cpython", "ready", &["python3", "-c", job]);
}

#[test]
fn numpy_arrays_of_numbers() {
    let job = "
try:
    import numpy as n
except ImportError:
    n = None
if n:
    r = n.random.default_rng(1)
    kept = [n.cumsum(r.integers(-9, 9, 200000)), r.normal(20, 3, 200000).round(2), r.integers(0, 999, 400000, dtype='i4'),
            r.normal(0, 1, 200000).astype('f4'), (r.random(200000) < .1) * r.random(200000), n.arange(100000)]
else:
    import array
    kept = [array.array('i', range(400000)), array.array('d', (i * .25 for i in range(200000)))]
print('ready', flush=True)
input()
";
    keeps_its_promises("numpy", "ready", &["python3", "-c", job]);
}

#[test]
fn node() {
    let job = "global.t=new Map();for(let i=0;i<60000;i++)t.set('k'+i,{a:i,b:i*1.5,c:['x'+i,i]});\
               console.log('ready');process.stdin.resume()";
    keeps_its_promises("node", "ready", &["node", "-e", job]);
}

#[test]
fn java() {
    if !has("javac") {
        return;
    }
    let scratch = Scratch::new("heap-java-source");
    let source = scratch.write(
        "H.java",
        "import java.util.*; public class H { public static void main(String[] a) throws Exception {\
         HashMap<String,long[]> m=new HashMap<>(); for(int i=0;i<80000;i++) m.put(\"key \"+i,new long[]{i,i*3L});\
         System.out.println(\"ready\"); System.in.read(); System.out.println(m.size()); } }",
    );
    printed(&mut command(&["javac", &source]));
    let classes = scratch.text("");
    keeps_its_promises("java", "ready", &["java", "-Xmx64m", "-cp", &classes, "H"]);
}

#[test]
fn perl() {
    let job = "$|=1; my %h; $h{\"word$_\"}=[$_,$_*2,{n=>\"v$_\"}] for 1..40000; print \"ready\\n\"; <STDIN>";
    keeps_its_promises("perl", "ready", &["perl", "-e", job]);
}

#[test]
fn sqlite() {
    let job = "PRAGMA temp_store=MEMORY; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL); \
               WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<120000) \
               INSERT INTO t SELECT i, 'row number '||i||' of '||(i*7%1000), i*0.5 FROM n; \
               CREATE INDEX x ON t(b); SELECT 'ready', count(*) FROM t;";
    keeps_its_promises("sqlite", "ready", &["sqlite3", "-cmd", job, ":memory:"]);
}
