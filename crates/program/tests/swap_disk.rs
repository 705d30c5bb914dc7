//! A real program on a full or failing disk: it has every byte, or is ended with a message.

#[allow(dead_code)]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};

use support::{can_manage, has, uzswap, Scratch};

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
fn run_on_disk(mib: u64, change: impl FnOnce(&std::fs::File)) -> Option<Output> {
    if !can_manage() || !["python3", "mkfs.ext4", "unshare", "mount"].iter().all(|program| has(program)) {
        return None;
    }
    let scratch = Scratch::new("swap-disk");
    let (image, place) = (scratch.path("image"), scratch.path("place"));
    std::fs::create_dir(&place).unwrap();
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(mib << 20).unwrap();
    assert!(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).status().unwrap().success());
    let mount = "mount -o loop \"$0\" \"$1\" && shift && exec \"$@\"";
    let trial =
        Command::new("unshare").args(["-m", "sh", "-c", mount]).arg(&image).arg(&place).arg("true").output();
    if !trial.unwrap().status.success() {
        testkit::skip!("disk", "no file system can be mounted from a file");
        return None;
    }
    let mut run = Command::new("unshare");
    run.args(["-m", "sh", "-c", mount]).arg(&image).arg(&place).arg(uzswap().get_program());
    run.args(["run", "--ram", "64M", "--swap", "256M", "--swap-dir"]).arg(&place);
    run.args(["--", "python3", "-c", SCRIPT]);
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(run.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    change(&file);
    let _ = run.stdin.take().unwrap().write_all(b"\n");
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).unwrap();
    let mut ended = run.wait_with_output().unwrap();
    ended.stdout = rest;
    Some(ended)
}

fn expected() -> Vec<u8> {
    let output = Command::new("python3").args(["-c", SCRIPT]).stdin(Stdio::null()).output().unwrap();
    output.stdout.strip_prefix(b"up\n").unwrap().to_vec()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_full_disk_leaves_a_real_program_its_bytes() {
    let Some(output) = run_on_disk(40, |_| ()) else { return };
    assert_eq!((output.status.code(), &output.stdout), (Some(0), &expected()), "{}", said(&output));
    assert!(said(&output).contains("the swap file was full, or its disk"), "{}", said(&output));
}

#[test]
fn a_disk_that_fails_ends_a_real_program_or_leaves_it_its_bytes() {
    // Reads and writes beyond the new end fail from here on.
    let Some(output) = run_on_disk(400, |image| image.set_len(24 << 20).unwrap()) else { return };
    match output.status.code() {
        Some(0) => assert_eq!(output.stdout, expected(), "{}", said(&output)),
        status => {
            assert!(output.stdout.is_empty() && status == Some(125), "{status:?} {}", said(&output));
            assert!(said(&output).contains("swap file"), "{}", said(&output));
        }
    }
}
