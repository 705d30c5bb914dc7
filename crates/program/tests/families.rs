//! Forked processes: pages that they share count once, and stay where copies would take more.

mod support;

use std::fs::OpenOptions;
use std::io::Write;

use support::group::Group;
use support::{
    can_manage, has, is_root, managed, own, printed, uzswap, wait_until, workload, Scratch, Started, PROGRAM,
};

const MIB: u64 = 1 << 20;

/// A tree of processes. Each has a FIFO that tells it what to do, and tells when it has done it. It
/// keeps the FIFO open for writing, too: the end of a writer is no end of the commands.
const TREE: &str = "import os, sys\n\
    folder, heap, more = sys.argv[1], bytearray(int(sys.argv[2]) << 20), []\n\
    def fill(heap, start, end, word):\n    \
        for at in range(start << 20, end << 20, 4096): heap[at:at + 8] = word\n\
    fill(heap, 0, int(sys.argv[2]), b'mutation')\n\
    def serve(name):\n    \
        os.mkfifo(folder + '/' + name)\n    \
        commands = open(folder + '/' + name, 'r+b', buffering=0)\n    \
        print('born', name, flush=True)\n    \
        while True:\n        \
            do, *words = commands.readline().decode().split()\n        \
            if do == 'fork':\n            \
                if os.fork() == 0: return words[0]\n            \
                continue\n        \
            elif do == 'write': fill(heap, int(words[0]), int(words[1]), os.urandom(8))\n        \
            elif do == 'grow':\n            \
                more.append(bytearray(int(words[0]) << 20))\n            \
                fill(more[-1], 0, int(words[0]), os.urandom(8))\n        \
            elif do == 'exec': os.execvp('sleep', ['sleep', '1000'])\n        \
            elif do == 'exit': os._exit(0)\n        \
            print('done', flush=True)\n\
    name = '0'\n\
    while True: name = serve(name)\n";

/// A run of [`TREE`] in a cgroup.
struct Tree {
    run: Started,
    group: Group,
    folder: String,
    names: Vec<String>,
    born: u32,
}

impl Tree {
    fn begin(scratch: &Scratch, name: &str, ram: &str, heap_mib: &str) -> Option<Self> {
        let group = Group::new(name)?;
        let folder = scratch.directory(name);
        let words = [PROGRAM, "run", "-q", "--ram", ram, "--", "python3", "-c", TREE, &folder, heap_mib];
        let mut run = group.run(&words);
        assert_eq!(run.line(), "born 0");
        Some(Tree { run, group, folder, names: vec!["0".to_owned()], born: 1 })
    }

    fn tell(&self, at: usize, text: &str) {
        let path = format!("{}/{}", self.folder, self.names[at]);
        let mut fifo = OpenOptions::new().write(true).open(path).unwrap();
        fifo.write_all(text.as_bytes()).unwrap();
    }

    fn fork(&mut self, at: usize) {
        let name = self.born.to_string();
        self.born += 1;
        self.tell(at, &format!("fork {name}\n"));
        assert_eq!(self.run.line(), format!("born {name}"));
        self.names.push(name);
    }

    fn act(&mut self, at: usize, text: &str) {
        self.tell(at, text);
        assert_eq!(self.run.line(), "done");
    }

    fn leave(&mut self, at: usize, text: &str) {
        self.tell(at, text);
        self.names.remove(at);
    }

    /// uzswap's count.
    fn counted(&self) -> u64 {
        let pid = self.run.pid().to_string();
        let mut top = uzswap();
        top.args(["top", "--once", "--json", "--interval", "0.05", &pid]);
        let trees: serde_json::Value = serde_json::from_str(&printed(&mut top)).unwrap();
        trees[0]["ram_used_bytes"].as_u64().unwrap()
    }

    /// Waits until uzswap counts what the cgroup does.
    fn assert_counted(&self, step: &str) {
        let mut seen = (0, 0);
        for _ in 0..200 {
            let segments = self.group.shared_bytes().saturating_sub(OWN_FILES);
            let before = self.group.anonymous_bytes() + segments;
            seen = (self.counted(), before);
            // The supervisor's own memory is in the cgroup, too.
            if seen.0.abs_diff(before) <= before / 100 * 3 + 8 * MIB {
                return;
            }
        }
        panic!("after {step}: {} MiB are counted, the cgroup has {}", seen.0 / MIB, seen.1 / MIB);
    }
}

/// Memory files of a run without segments: ledger, board, preload object, agent.
const OWN_FILES: u64 = 4 * MIB;

fn may() -> bool {
    has("python3") && can_manage() && is_root("make a cgroup")
}

/// Regression: sixteen idle children of 100 MiB counted 277 to 518 MiB, and children that wrote to
/// all of theirs 198 of 295. Each step waits for the count, which is right soon after it.
#[test]
fn shared_pages_count_once() {
    let scratch = Scratch::new("families");
    for (name, ram) in [("wide", "2G"), ("tight", "400M")] {
        if !may() {
            return;
        }
        let Some(mut tree) = Tree::begin(&scratch, name, ram, "64") else { return };
        let mut number = 12345u64;
        let mut random = |below: u64| {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (number >> 33) % below
        };
        for _ in 0..30 {
            let at = random(tree.names.len() as u64) as usize;
            let start = random(60);
            let end = start + 1 + random(64 - start);
            let step = match random(10) {
                0..=3 if tree.names.len() < 8 => {
                    tree.fork(at);
                    format!("{} forked", tree.names[at])
                }
                0..=6 => {
                    tree.act(at, &format!("write {start} {end}\n"));
                    format!("{} wrote {} MiB", tree.names[at], end - start)
                }
                7 => {
                    tree.act(at, &format!("grow {}\n", 1 + start / 2));
                    format!("{} grew", tree.names[at])
                }
                how if at > 0 => {
                    tree.leave(at, if how == 8 { "exit\n" } else { "exec\n" });
                    "one left".to_owned()
                }
                _ => continue,
            };
            tree.assert_counted(&step);
        }
        tree.run.kill();
    }
}

/// Regression: sixteen children of 100 MiB in a budget of 60 took 192 MiB, bare 101: each one
/// compressed the pages that all shared.
#[test]
fn pages_that_many_share_take_about_as_much_as_bare() {
    let Some(program) = workload("family").filter(|_| can_manage() && is_root("make a cgroup")) else {
        return;
    };
    let peak = |words: &[&str]| {
        let group = Group::new("shared")?;
        let mut run = group.run(words);
        let mut most = 0;
        while run.next_line().is_some() {
            most = most.max(group.anonymous_bytes());
        }
        run.end().assert_status(0);
        Some(most)
    };
    let job = [program, "100", "16"];
    let Some(bare) = peak(&job) else { return };
    let within = peak(&[&[PROGRAM, "run", "-q", "--ram", "60M", "--"], &job[..]].concat()).unwrap();
    // The supervisor and sixteen agents have memory of their own.
    assert!(within <= bare / 4 * 5, "{} MiB, bare {}", within / MIB, bare / MIB);
}

/// Nine processes share 160 MiB, which are in memory at the forks, and eight have 20 MiB more: in
/// 170 the shared pages must leave, and are stored once. Each process reads its own bytes. One that
/// gives up root keeps no file of its relatives.
#[test]
fn pages_in_common_are_stored_once_for_all() {
    const JOB: &str = "import os, sys, mmap, random\n\
        COUNT, OWN = 160 * 256, 20 * 256\n\
        def memory(pages): return mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
        def page(n): return random.Random(n).randbytes(1000)\n\
        def fill(to, first, all):\n    \
            for n in all: to[n * 4096:n * 4096 + 1000] = page(first + n)\n\
        def bad(of, first, all): return sum(of[n * 4096:n * 4096 + 1000] != page(first + n) for n in all)\n\
        heap = memory(COUNT)\n\
        fill(heap, 0, range(COUNT))\n\
        reader, writer = os.pipe()\n\
        for child in range(8):\n    \
            if os.fork() == 0:\n        \
                os.close(writer)\n        \
                own = memory(OWN)\n        \
                fill(own, COUNT * (child + 1), range(OWN))\n        \
                heap[child * 4096:child * 4096 + 1000] = page(child + 1)\n        \
                os.read(reader, 1)\n        \
                wrong = bad(heap, 1, [child]) + bad(heap, 0, range(8 + child, COUNT, 8))\n        \
                maps = lambda: 'uzswap-segment' in open('/proc/self/maps').read()\n        \
                if child == 0:\n            \
                    wrong += not maps()\n            \
                    os.setuid(65534)\n            \
                    wrong += maps()\n        \
                os._exit(0 if wrong + bad(own, COUNT * (child + 1), range(OWN)) == 0 else 1)\n\
        print('forked', flush=True)\n\
        sys.stdin.readline()\n\
        os.close(writer)\n\
        failed = sum(os.wait()[1] != 0 for _ in range(8))\n\
        print('wrong', failed + bad(heap, 0, range(COUNT)), flush=True)\n";
    if !(can_manage() && has("python3") && is_root("make a cgroup")) {
        return;
    }
    let Some(group) = Group::new("common") else { return };
    let mut run = group.run(&[PROGRAM, "run", "-q", "--ram", "170M", "--", "python3", "-c", JOB]);
    assert_eq!(run.next_line().as_deref(), Some("forked"));
    let bytes = || group.anonymous_bytes() + group.shared_bytes();
    wait_until("all are full", || bytes() > 150 * MIB && group.shared_bytes() > 25 * MIB);
    wait_until("all have moved them out", || bytes() < 185 * MIB);
    run.tell("\n");
    assert_eq!(run.next_line().as_deref(), Some("wrong 0"));
    run.end().assert_status(0);
}

/// Relatives fork, write to pages in common, end and are killed, in less memory than they share.
#[test]
fn relatives_that_come_and_go_have_their_own_bytes() {
    if !(can_manage() && has("python3")) {
        return;
    }
    let script = own("tests/workloads/relatives.py").display().to_string();
    for options in [&["-q"][..], &["-q", "--verify", "--swap", "500M"]] {
        let Some(ran) = managed("110M", options, &["python3", &script, "10"]) else { return };
        ran.assert_status(0);
        assert!(ran.number("zswpout") > 10_000, "{ran}");
        assert_eq!(ran.printed, "bad 0\n", "{ran}");
    }
}

/// Regression: pages that were out at a fork counted in each child: a heap of 200 MiB with four
/// idle children would have been 780. While shared pages leave, one after the other of those that
/// share them, some count twice.
#[test]
fn out_pages_that_children_inherit_would_have_been_there_once() {
    const HEAP: &str = "import os, time, mmap\n\
        heap = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
        for at in range(0, len(heap), 4096): heap[at:at + 1900] = os.urandom(1900)\n\
        time.sleep(0.5)\n\
        for _ in range(4):\n    \
            if os.fork() == 0:\n        \
                time.sleep(1)\n        \
                os._exit(0)\n\
        for _ in range(4): os.wait()\n";
    if !(has("python3") && is_root("take over at a fork")) {
        return;
    }
    let Some(ran) = managed("120M", &[], &["python3", "-c", HEAP]) else { return };
    ran.assert_status(0);
    assert!(ran.number("zswpout") > 10_000, "{ran}");
    let wanted = ran.number("ram_wanted_peak_bytes") / MIB;
    assert!((190..400).contains(&wanted), "{wanted} MiB: {ran}");
}
