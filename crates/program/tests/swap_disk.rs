//! A real program on a full or failing disk: it has every byte, or is ended with a message.

mod support;

use std::process::{Command, Stdio};

use support::{can_manage, command, has, printed, Ran, Scratch, Started, PROGRAM};

/// 110 MiB of incompressible data of Python and SQLite, read after a line of input; their digest.
const SCRIPT: &str = "
import hashlib, random, sqlite3, sys
r = random.Random(5)
parts = [r.randbytes(4096) for _ in range(20000)]
rows = sqlite3.connect(':memory:')
rows.execute('create table t(k integer primary key, v blob)')
rows.executemany('insert into t values(?, ?)', ((i, r.randbytes(3000)) for i in range(10000)))
print('up', flush=True)
sys.stdin.readline()
digest = hashlib.sha256()
for part in parts: digest.update(part)
for turn in range(2):
    for (value,) in rows.execute('select v from t order by (k * 7919) % 10007'): digest.update(value)
print(digest.hexdigest(), flush=True)
";

/// Runs the script with its swap file on a file system in a file of `mib`. `change` alters the file
/// when memory is full. `None` where that is impossible.
fn run_on_disk(mib: u64, change: impl FnOnce(&std::fs::File)) -> Option<Ran> {
    if !can_manage() || !["python3", "mkfs.ext4", "unshare", "mount"].iter().all(|program| has(program)) {
        return None;
    }
    let scratch = Scratch::new("swap-disk");
    let (image, place) = (scratch.text("image"), scratch.directory("place"));
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(mib << 20).unwrap();
    printed(&mut command(&["mkfs.ext4", "-q", "-F", &image]));
    let mount = "mount -o loop \"$0\" \"$1\" && shift && exec \"$@\"";
    let mounted = ["unshare", "-m", "sh", "-c", mount, &image, &place];
    if Ran::of(command(&mounted).arg("true")).status != Some(0) {
        testkit::skip!("disk", "no file system can be mounted from a file");
        return None;
    }
    let run = [PROGRAM, "run", "--ram", "64M", "--swap", "256M", "--swap-dir", &place];
    let mut run = Started::new(command(&mounted).args(run).args(["--", "python3", "-c", SCRIPT]));
    let _ = run.next_line();
    change(&file);
    // The program may have been ended.
    let _ = std::io::Write::write_all(run.child.stdin.as_mut().unwrap(), b"\n");
    Some(run.end())
}

fn expected() -> String {
    let printed = printed(Command::new("python3").args(["-c", SCRIPT]).stdin(Stdio::null()));
    printed.strip_prefix("up\n").unwrap().to_owned()
}

#[test]
fn a_full_disk_leaves_a_real_program_its_bytes() {
    let Some(ran) = run_on_disk(40, |_| ()) else { return };
    ran.assert_status(0).assert_says(&["the swap file was full, or its disk"]);
    assert_eq!(ran.printed, expected(), "{ran}");
}

#[test]
fn a_disk_that_fails_ends_a_real_program_or_leaves_it_its_bytes() {
    // Reads and writes beyond the new end fail from here on.
    let Some(ran) = run_on_disk(400, |image| image.set_len(24 << 20).unwrap()) else { return };
    if ran.status == Some(0) {
        assert_eq!(ran.printed, expected(), "{ran}");
    } else {
        ran.assert_status(125).assert_says(&["swap file"]);
        assert_eq!(ran.printed, "", "{ran}");
    }
}
