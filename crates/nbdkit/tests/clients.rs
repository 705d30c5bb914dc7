//! The plugin in a real nbdkit, used by real clients.

mod support;

use std::fs;
use std::path::Path;

use support::{command, has, has_nbdsh, may_mount, output, plugin, run, wait_until};
use support::{Directory, Fuse, Loop, Mount, Server};

/// Heap-like bytes: this test's own program, again and again, and some that do not compress.
fn corpus(len: usize) -> Vec<u8> {
    let program = fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut bytes: Vec<u8> = program.iter().copied().cycle().take(len).collect();
    let mut state = 9u64;
    for (number, page) in bytes.chunks_mut(4096).enumerate() {
        match number % 13 {
            0 => page.fill(0),
            1 => page.iter_mut().for_each(|byte| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (state >> 56) as u8;
            }),
            _ => page[..8].copy_from_slice(&number.to_le_bytes()),
        }
    }
    bytes
}

fn refused(settings: &[&str]) -> String {
    Server::try_start(&[], settings).err().unwrap_or_else(|| panic!("{settings:?} was taken"))
}

#[test]
fn the_plugin_says_what_it_is_and_what_is_wrong() {
    if !has(&["nbdkit", "nbdinfo"]) {
        return;
    }
    let dump = run(command("nbdkit").arg("--dump-plugin").arg(plugin()));
    for line in ["name=uzswap", "max_thread_model=parallel", "thread_model=parallel", "magic_config_key=size"]
    {
        assert!(dump.lines().any(|found| found == line), "{line} in {dump}");
    }
    assert!(dump.contains("uzswap_compressors=") && dump.contains("zstd"), "{dump}");
    let help = run(command("nbdkit").arg("--help").arg(plugin()));
    assert!(help.contains("ram=SIZE") && help.contains("lock=no|yes|try"), "{help}");

    for (settings, reason) in [
        (&[][..], "size= is missing"),
        (&["size=1M", "compressor=lzx"], "lzx"),
        (&["size=5000"], "whole blocks of 4096"),
        (&["size=1M", "unit=5000"], "unit_size is 5000"),
        (&["size=1M", "lock=yes"], "lock= needs ram="),
        (&["size=1M", "swap=1G"], "no swap file"),
        (&["size=1M", "colour=red"], "there is no setting \"colour\""),
        (&["size=large"], "could not parse size"),
        (&["size=1M", "checksums=perhaps"], "could not decipher boolean"),
        (&["size=2T"], "at most 1 TiB"),
    ] {
        let said = refused(settings);
        assert!(said.contains(reason), "{settings:?}: {said}");
    }
}

#[test]
fn libnbd_finds_every_operation() {
    if !has(&["nbdkit", "nbdinfo"]) || !has_nbdsh() {
        return;
    }
    let server = Server::new(&["64M", "ram=8M", "checksums=true", "compressor=lz4"]);
    let said = server.nbdsh_ok(
        r#"
import os, errno
assert h.get_size() == 64 << 20 and h.can_multi_conn() and h.can_fast_zero() and h.can_cache() and h.can_fua()
assert h.get_block_size(nbd.SIZE_MINIMUM) == 1 and h.get_block_size(nbd.SIZE_PREFERRED) == 4096
h.pwrite(b"uzswap" * 1000, 5000, nbd.CMD_FLAG_FUA)
assert h.pread(6000, 5000) == b"uzswap" * 1000
assert h.pread(5000, 0) == bytes(5000)
h.zero(3000, 6000, nbd.CMD_FLAG_FAST_ZERO)
h.flush()
h.cache(65536, 0)
want = bytearray(b"uzswap" * 1000); want[1000:4000] = bytes(3000)
assert h.pread(6000, 5000) == bytes(want)
h.trim(65536, 0)
assert h.pread(65536, 0) == bytes(65536)
h.pwrite(b"x", (64 << 20) - 1)
try:
    h.set_strict_mode(0)
    h.pwrite(b"xy", (64 << 20) - 1)
    assert False
except nbd.Error as error:
    assert error.errno in ("ENOSPC", "EINVAL"), error.errno
# Full: an error, and everything that was written is still there.
pieces = {}
try:
    for at in range(0, 32 << 20, 65536):
        piece = os.urandom(65536)
        h.pwrite(piece, at)
        pieces[at] = piece
    assert False, "8 MiB of memory took 32 MiB of noise"
except nbd.Error as error:
    assert error.errno == "ENOSPC", error.errno
assert len(pieces) > 100, len(pieces)
for at, piece in pieces.items():
    assert h.pread(65536, at) == piece, at
h.trim(32 << 20, 0)
h.pwrite(piece, 0)
print(len(pieces))
"#,
    );
    assert!(said.trim().parse::<u32>().unwrap() > 100);
}

/// Random requests of several connections, ten in flight on each, against plain bytes.
#[test]
fn random_requests_agree_with_plain_bytes() {
    if !has(&["nbdkit", "nbdinfo"]) || !has_nbdsh() {
        return;
    }
    let server = Server::new(&["4M", "ram=2M", "checksums=true", "unit=4k"]);
    server.nbdsh_ok(
        r#"
import random
random.seed(5)
size = 4 << 20
model = bytearray(size)
handles = []
for _ in range(3):
    other = nbd.NBD(); other.connect_uri(uri); other.set_strict_mode(0); handles.append(other)
words = [bytes([n]) * 7 + bytes(9) for n in range(40)]
refused = 0
for round in range(400):
    # Requests in flight at once do not overlap.
    places = sorted(random.sample(range(0, size + 1), 20))
    flights = []
    for at, end in zip(places[::2], places[1::2]):
        length = min(end - at, random.choice([1, 511, 4096, 4096 * 3, 65536, 200000]))
        if length == 0: continue
        if random.random() < 0.4: at = at // 4096 * 4096; length = min(length, size - at)
        if flights and at < flights[-1][2] + flights[-1][3]: continue
        kind = random.choice("wwwrrrdzn")
        connection = random.choice(handles)
        if kind in "wn":
            piece = random.choice(words) * (length // 16 + 1) if kind == "w" else random.randbytes(length)
            buffer = nbd.Buffer.from_bytearray(bytearray(piece[:length]))
            cookie = connection.aio_pwrite(buffer, at)
        elif kind == "r":
            buffer = nbd.Buffer(length)
            cookie = connection.aio_pread(buffer, at)
        elif kind == "d":
            buffer = None
            cookie = connection.aio_trim(length, at)
        else:
            buffer = None
            cookie = connection.aio_zero(length, at)
        flights.append((kind, connection, at, length, buffer, cookie))
    for kind, connection, at, length, buffer, cookie in flights:
        try:
            while not connection.aio_command_completed(cookie): connection.poll(-1)
        except nbd.Error as error:
            assert error.errno == "ENOSPC" and kind in "wzn", (kind, error.errno)
            refused += 1
            # Whole leaves from the front were done; ask.
            now = connection.pread(length, at)
            new = buffer.to_bytearray() if kind in "wn" else bytearray(length)
            done = 0
            while done < length and now[done] == new[done]: done += 1
            assert now[done:] == model[at + done:at + length], (kind, at, length)
            model[at:at + length] = now
            continue
        if kind in "wn": model[at:at + length] = buffer.to_bytearray()
        elif kind == "r": assert buffer.to_bytearray() == model[at:at + length], (at, length)
        elif kind == "z": model[at:at + length] = bytes(length)
        else:
            first = -(-at // 4096) * 4096; last = (at + length) // 4096 * 4096
            if first < last: model[first:last] = bytes(last - first)
for at in range(0, size, 1 << 20):
    assert h.pread(1 << 20, at) == model[at:at + (1 << 20)]
"#,
    );
}

#[test]
fn qemu_copies_images_and_sees_holes() {
    if !has(&["nbdkit", "qemu-img"]) {
        return;
    }
    let directory = Directory::new();
    let image = directory.join("image");
    let mut bytes = corpus(24 << 20);
    bytes[8 << 20..16 << 20].fill(0);
    fs::write(&image, &bytes).unwrap();
    let server = Server::new(&["24M", "checksums=true"]);
    let qemu = |arguments: &[&str]| run(command("qemu-img").args(arguments));
    qemu(&["convert", "-n", "-f", "raw", "-O", "raw", image.to_str().unwrap(), &server.uri()]);
    qemu(&["compare", "-f", "raw", "-F", "raw", image.to_str().unwrap(), &server.uri()]);
    let map: serde_json::Value =
        serde_json::from_str(&qemu(&["map", "--output=json", "-f", "raw", &server.uri()])).unwrap();
    let hole = map.as_array().unwrap().iter().find(|extent| extent["start"] == 8 << 20);
    let hole = hole.unwrap_or_else(|| panic!("an extent at 8 MiB in {map}"));
    assert_eq!((&hole["data"], &hole["zero"]), (&false.into(), &true.into()), "{hole}");
    assert!(hole["length"].as_u64().unwrap() >= 8 << 20, "{hole}");
    // A qcow2 inside, filled, checked and read back.
    let other = Server::new(&["64M", "checksums=true"]);
    qemu(&["convert", "-f", "raw", "-O", "qcow2", "-n", "--target-is-zero", image.to_str().unwrap(), {
        qemu(&["create", "-f", "qcow2", &other.uri(), "24M"]);
        &other.uri()
    }]);
    let checked = qemu(&["check", "-f", "qcow2", &other.uri()]);
    assert!(checked.contains("No errors were found"), "{checked}");
    qemu(&["compare", "-f", "raw", "-F", "qcow2", image.to_str().unwrap(), &other.uri()]);
}

#[test]
fn nbdcopy_copies_both_ways() {
    if !has(&["nbdkit", "nbdcopy"]) {
        return;
    }
    let directory = Directory::new();
    let (image, back) = (directory.join("image"), directory.join("back"));
    fs::write(&image, corpus(32 << 20)).unwrap();
    for settings in [&["32M", "checksums=true"][..], &["32M", "unit=64k", "compressor=zstd:1", "queues=3"]] {
        let server = Server::new(settings);
        run(command("nbdcopy").args(["--connections=4", "--requests=32"]).arg(&image).arg(server.uri()));
        run(command("nbdcopy").args(["--connections=4", "--requests=32"]).arg(server.uri()).arg(&back));
        assert!(fs::read(&image).unwrap() == fs::read(&back).unwrap());
        fs::remove_file(&back).unwrap();
    }
}

#[test]
fn fio_verifies_through_a_file() {
    if !has(&["nbdkit", "nbdfuse", "fio"]) || !may_mount() {
        return;
    }
    let server = Server::new(&["64M", "checksums=true"]);
    let fuse = Fuse::new(&server);
    let file = fuse.file();
    let said = run(command("fio").current_dir(&fuse.directory.0).args([
        "--name=verify",
        "--rw=randrw",
        "--bsrange=512-128k",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--size=64M",
        "--io_size=96M",
        "--ioengine=psync",
        "--buffer_compress_percentage=60",
        "--refill_buffers",
        "--randseed=7",
        &format!("--filename={}", file.display()),
    ]));
    assert!(said.contains("err= 0"), "{said}");
}

#[test]
fn file_systems_are_whole() {
    if !has(&["nbdkit", "nbdfuse", "losetup", "mkfs.ext4", "mkfs.btrfs", "e2fsck", "btrfs"]) || !may_mount() {
        return;
    }
    let kernel = fs::read_to_string("/proc/filesystems").unwrap();
    for (name, make, check) in [
        ("ext4", &["mkfs.ext4", "-q", "-F"][..], &["e2fsck", "-f", "-n"][..]),
        ("btrfs", &["mkfs.btrfs", "-q", "-f"], &["btrfs", "check"]),
    ] {
        if !kernel.contains(name) {
            println!("skipped: the kernel has no {name}");
            continue;
        }
        let mut server = Server::new(&["256M", "checksums=true"]);
        let fuse = Fuse::new(&server);
        let disk = Loop::new(&fuse.file());
        run(command(make[0]).args(&make[1..]).arg(&disk.0));
        let sources = &Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("zswap");
        {
            let mount = Mount::new(&disk.0);
            let root = &mount.0;
            fs::write(root.join("corpus"), corpus(60 << 20)).unwrap();
            run(command("cp").arg("-r").arg(sources).arg(root.join("sources")));
            run(command("rm").arg("-r").arg(root.join("sources").join("tests")));
            run(command("fstrim").arg(&root.0));
        }
        run(command(check[0]).args(&check[1..]).arg(&disk.0));
        {
            let mount = Mount::new(&disk.0);
            assert!(fs::read(mount.0.join("corpus")).unwrap() == corpus(60 << 20), "{name}");
            let differ = output(command("diff").args(["-r", "-q"]).arg(sources).arg(mount.0.join("sources")));
            let text = String::from_utf8_lossy(&differ.stdout).into_owned();
            assert_eq!(text.lines().count(), 1, "{name}: {text}");
            assert!(text.contains("tests"), "{name}: {text}");
        }
        drop(disk);
        drop(fuse);
        server.kill();
    }
}

#[test]
fn clients_of_a_killed_server_are_told() {
    if !has(&["nbdkit", "nbdinfo"]) || !has_nbdsh() {
        return;
    }
    let server = Server::new(&["64M"]);
    let pid = server.child.id();
    let said = server.nbdsh_ok(&format!(
        r#"
import os, signal
h.pwrite(bytes(range(256)) * 4096, 0)
os.kill({pid}, signal.SIGKILL)
try:
    for _ in range(1000): h.pread(4096, 0)
    assert False, "a dead server answered"
except nbd.Error as error:
    print(error.string)
"#
    ));
    assert!(!said.trim().is_empty());
    if !has(&["nbdfuse"]) || !may_mount() {
        return;
    }
    // The same through a file: reads fail, they do not answer zeroes.
    let mut server = Server::new(&["1M"]);
    let fuse = Fuse::new(&server);
    fs::write(fuse.file(), vec![7; 1 << 20]).unwrap();
    server.kill();
    run(command("sh").args(["-c", "echo 1 > /proc/sys/vm/drop_caches"]));
    let read = fs::read(fuse.file());
    assert!(
        read.as_ref().is_err() || read.as_ref().is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 7)),
        "{read:?}"
    );
}

#[test]
fn figures_are_written() {
    if !has(&["nbdkit", "nbdinfo"]) || !has_nbdsh() {
        return;
    }
    let directory = Directory::new();
    let file = directory.join("stats");
    let server = Server::new(&["64M", "ram=16M", &format!("stats={}", file.display())]);
    server.nbdsh_ok("h.pwrite(b'heap' * 262144, 0)\nh.pread(4096, 0)\nh.trim(4096, 4096)");
    let figures =
        || -> serde_json::Value { serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap() };
    wait_until("the figures are written", || figures()["discard_ios"] == 1);
    let figures = figures();
    assert_eq!((&figures["disksize"], &figures["mem_limit"]), (&(64 << 20).into(), &(16 << 20).into()));
    assert_eq!(figures["orig_data_size"], (1 << 20) - 4096);
    assert!(figures["write_ios"] == 1 && figures["read_bytes"] == 4096, "{figures}");
    assert!(figures["write_p50_us"].as_f64().unwrap() > 0.0, "{figures}");
}

/// What a server is that others swap on: locked memory, marked threads, spared.
#[test]
fn a_server_to_swap_on_is_locked() {
    if !has(&["nbdkit", "nbdinfo"]) || !has_nbdsh() {
        return;
    }
    let strict = Server::try_start(&[], &["64M", "ram=20M", "lock=yes"]);
    let is_allowed = strict.is_ok();
    if let Err(said) = strict {
        println!("skipped in part: {}", said.trim());
        assert!(said.contains("is needed") || said.contains("are needed"), "{said}");
    }
    let how = if is_allowed { "lock=yes" } else { "lock=try" };
    let server = Server::start(&["-t", "4"], &["64M", "ram=24M", how]);
    let status = || fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let kilobytes = |text: &str, name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let before = status();
    if kilobytes(&before, "VmLck:") == 0 {
        println!("skipped: memory cannot be locked here");
        return;
    }
    assert!(kilobytes(&before, "VmLck:") > 24 << 10, "{before}");
    server.nbdsh_ok(
        "import os\nn = 0\ntry:\n  for at in range(0, 64 << 20, 65536): h.pwrite(os.urandom(8192) * 8, at); n += 1\nexcept nbd.Error: pass\nassert n > 300, n",
    );
    let after = status();
    let grown = kilobytes(&after, "VmRSS:").saturating_sub(kilobytes(&before, "VmRSS:"));
    assert!(grown < 3 << 10, "{grown} KiB more for threads and buffers\n{after}");
    if is_allowed {
        let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", server.child.id())).unwrap();
        assert_eq!(score.trim(), "-1000");
    }
}
