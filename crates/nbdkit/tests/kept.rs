//! A disk that is kept in a file: after a clean end, after `kill -9`, and what is refused.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::{command, has, has_nbdsh, may_mount, output, run, Directory, Fuse, Loop, Mount, Server};

/// A file of a disk of that size, and what nbdkit is told of it.
fn settings(directory: &Directory, size: &str) -> Vec<String> {
    let file = |name| directory.join(name).display().to_string();
    vec![
        size.into(),
        "ram=24M".into(),
        "compressor=lz4".into(),
        format!("swap-file={}", file("disk")),
        format!("swap-key={}", file("key")),
    ]
}

/// The same where nbdsh can use one; prints why it cannot.
fn ready(size: &str) -> Option<(Directory, Vec<String>)> {
    if !has(&["nbdkit", "nbdinfo"]) || !has_nbdsh() {
        return None;
    }
    let directory = Directory::on_disk()?;
    let settings = settings(&directory, size);
    Some((directory, settings))
}

fn start(settings: &[String]) -> Server {
    Server::new(&settings.iter().map(String::as_str).collect::<Vec<_>>())
}

/// SIGTERM, and the end of the server.
fn end(server: &mut Server) {
    run(Command::new("kill").arg(server.child.id().to_string()));
    assert!(server.child.wait().unwrap().success());
}

/// What must not be seen in the file.
const MARK: &str = "a text that must not be readable on an encrypted disk";

const DATA: &str = r#"
import random
def data(seed):
    r = random.Random(seed)
    return b"".join(r.randbytes(2048) + bytes([r.randrange(256)]) * 2048 for _ in range(256))
"#;

#[test]
fn what_was_flushed_survives_the_server() {
    let Some((directory, settings)) = ready("64M") else { return };
    // More than memory holds; a flush; what comes after it may be there or not.
    let mut server = start(&settings);
    server.nbdsh_ok(&format!(
        "{DATA}
assert h.can_fua() and h.can_flush()
for n in range(32): h.pwrite(data(n), n << 20)
h.trim(1 << 20, 3 << 20)
h.zero(5000, (4 << 20) + 100)
h.pwrite(b'{MARK}' + bytes(4096 - {}), 60 << 20)
h.flush()
h.pwrite(data(100), 40 << 20, nbd.CMD_FLAG_FUA)
h.pwrite(data(101), 41 << 20)
",
        MARK.len()
    ));
    server.kill();
    let check = format!(
        "{DATA}
for n in range(32):
    want = bytearray(data(n))
    if n == 3: want = bytearray(1 << 20)
    if n == 4: want[100:5100] = bytes(5000)
    assert h.pread(1 << 20, n << 20) == bytes(want), n
assert h.pread(1 << 20, 40 << 20) == data(100)
after = h.pread(1 << 20, 41 << 20)
for at in range(0, 1 << 20, 4096):
    assert after[at:at+4096] in (bytes(4096), data(101)[at:at+4096]), at
assert h.pread(1 << 20, 50 << 20) == bytes(1 << 20)
"
    );
    let mut server = start(&settings);
    server.nbdsh_ok(&check);
    // A clean end keeps unflushed writes.
    server.nbdsh_ok(&format!("{DATA}\nh.pwrite(data(102), 42 << 20)"));
    end(&mut server);
    let server = start(&settings);
    server.nbdsh_ok(&check);
    server.nbdsh_ok(&format!("{DATA}\nassert h.pread(1 << 20, 42 << 20) == data(102)"));
    // Nothing of it can be read in the file, and other users may not open it.
    let mode = |name| fs::metadata(directory.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("disk"), mode("key")), (0o600, 0o600));
    // The file is mostly holes; what was written lies at its beginning.
    assert!(!contains(&directory.join("disk"), MARK.as_bytes()));
}

#[test]
fn many_kills_lose_nothing_that_was_flushed() {
    let Some((_directory, settings)) = ready("16M") else { return };
    let rounds = 6;
    for round in 0..rounds {
        let mut server = start(&settings);
        // Each round's blocks say which round wrote them last, and was flushed; then some are
        // written and not flushed.
        server.nbdsh_ok(&format!(
            r#"
import os, random, signal
round = {round}
def block(n, r): return random.Random(n * 1000 + r).randbytes(4000) + bytes(96)
r = random.Random(7)
last = {{}}
for was in range(round):
    for n in r.sample(range(4096), 700): last[n] = was
late = random.Random(round - 1 + 500).sample(range(4096), 300) if round > 0 else []
for n in range(4096):
    have = h.pread(4096, n * 4096)
    want = block(n, last[n]) if n in last else bytes(4096)
    # Only what was written last, and not flushed, may be there instead.
    assert have == want or n in late and have == block(n, 100 + round - 1), (n, last.get(n))
    if have != want: h.pwrite(want, n * 4096)
for n in r.sample(range(4096), 700): h.pwrite(block(n, round), n * 4096)
h.flush()
for n in random.Random(round + 500).sample(range(4096), 300): h.pwrite(block(n, 100 + round), n * 4096)
os.kill({pid}, signal.SIGKILL)
"#,
            pid = server.child.id()
        ));
        server.kill();
    }
}

#[test]
fn what_does_not_fit_is_refused_and_left_alone() {
    let Some((directory, settings)) = ready("16M") else { return };
    let refused = |changed: &[(&str, String)]| {
        let mut settings = settings.clone();
        for (name, value) in changed {
            settings.retain(|setting| !setting.starts_with(name));
            settings.push(value.clone());
        }
        let settings: Vec<&str> =
            settings.iter().filter(|text| !text.is_empty()).map(String::as_str).collect();
        match Server::try_start(&[], &settings) {
            Ok(_) => panic!("{settings:?} was served"),
            Err(said) => said,
        }
    };
    let mut server = start(&settings);
    server.nbdsh_ok("h.pwrite(b'kept' * 1024, 4096)");
    assert!(refused(&[]).contains("is in use by another server"));
    end(&mut server);

    let file = |name: &str| directory.join(name).display().to_string();
    let said = refused(&[("16M", "32M".into())]);
    assert!(said.contains("was made with a device of 16777216 bytes, not 33554432"), "{said}");
    let said = refused(&[("compressor", "compressor=zstd:1".into())]);
    assert!(said.contains("was made with compressor lz4, not zstd:1"), "{said}");
    let said = refused(&[("unit", "unit=16k".into())]);
    assert!(said.contains("was made with units of 4096, not 16384"), "{said}");
    let said = refused(&[("swap-key", "swap-plain=yes".into())]);
    assert!(said.contains("was made with encryption by a key, not none"), "{said}");
    let said = refused(&[("swap-key", format!("swap-key={}", file("nokey")))]);
    assert!(said.contains("nokey") && !directory.join("nokey").exists(), "{said}");
    fs::write(directory.join("other"), [1; 32]).unwrap();
    fs::set_permissions(directory.join("other"), fs::Permissions::from_mode(0o644)).unwrap();
    let said = refused(&[("swap-key", format!("swap-key={}", file("other")))]);
    assert!(said.contains("chmod 600"), "{said}");
    fs::set_permissions(directory.join("other"), fs::Permissions::from_mode(0o600)).unwrap();
    let said = refused(&[("swap-key", format!("swap-key={}", file("other")))]);
    assert!(said.contains("the key does not fit"), "{said}");
    let foreign = vec![b'#'; 9000];
    fs::write(directory.join("foreign"), &foreign).unwrap();
    fs::set_permissions(directory.join("foreign"), fs::Permissions::from_mode(0o600)).unwrap();
    let said = refused(&[("swap-file", format!("swap-file={}", file("foreign")))]);
    assert!(said.contains("is no swap file of uzswap"), "{said}");
    assert_eq!(fs::read(directory.join("foreign")).unwrap(), foreign);
    for (changed, reason) in [
        (&[("lock", "lock=try".to_owned())][..], "lock= is for swap"),
        (&[("swap=", "swap=64M".to_owned())], "swap= and swap-dir= are for a file that is gone"),
        (&[("ram", String::new())], "swap-file= needs ram="),
        (&[("swap-key", String::new())], "swap-file= needs swap-key=FILE"),
        (&[("swap-file", String::new())], "swap-key= needs swap-file="),
        (&[("checksums", "checksums=yes".to_owned())], "checksums of pages are not kept"),
    ] {
        let said = refused(changed);
        assert!(said.contains(reason), "{changed:?}: {said}");
    }
    // After all that it is as it was.
    let server = start(&settings);
    server.nbdsh_ok("assert h.pread(8192, 0) == bytes(4096) + b'kept' * 1024");
}

#[test]
fn a_file_system_is_whole_after_a_kill() {
    if !has(&["nbdkit", "nbdfuse", "losetup", "mkfs.ext4", "e2fsck"]) || !may_mount() {
        return;
    }
    let Some(directory) = Directory::on_disk() else { return };
    let settings = settings(&directory, "128M");
    let sources = &Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("swapfile/src");
    {
        let mut server = start(&settings);
        let fuse = Fuse::new(&server);
        let disk = Loop::new(&fuse.file());
        run(command("mkfs.ext4").args(["-q", "-F"]).arg(&disk.0));
        let mount = Mount::new(&disk.0);
        run(command("cp").arg("-r").arg(sources).arg(mount.0.join("sources")));
        run(command("sync").arg("-f").arg(&mount.0 .0));
        // What comes now is under way when the server dies.
        let _ = output(command("cp").arg("-r").arg(sources).arg(mount.0.join("more")));
        server.kill();
    }
    let server = start(&settings);
    let fuse = Fuse::new(&server);
    let disk = Loop::new(&fuse.file());
    {
        // Its journal is played back.
        let mount = Mount::new(&disk.0);
        let differ = output(command("diff").args(["-r", "-q"]).arg(sources).arg(mount.0.join("sources")));
        let said = [&differ.stdout[..], &differ.stderr].concat();
        assert!(differ.status.success(), "{}", String::from_utf8_lossy(&said));
    }
    run(command("e2fsck").args(["-f", "-n"]).arg(&disk.0));
}

/// Whether bytes are anywhere in the first 16 MiB of a file.
fn contains(file: &Path, bytes: &[u8]) -> bool {
    use std::io::Read;
    let mut beginning = Vec::new();
    fs::File::open(file).unwrap().take(16 << 20).read_to_end(&mut beginning).unwrap();
    beginning.windows(bytes.len()).any(|window| window == bytes)
}
