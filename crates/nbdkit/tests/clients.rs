//! The plugin in a real nbdkit, used by real clients.

mod support;

use std::fs;
use std::path::Path;

use support::{command, figures, has, has_nbdsh, may_mount, output, plugin, run, wait_until};
use support::{Directory, Fuse, Loop, Mount, Server};

/// Heap-like bytes: this test's own program, repeated, and some incompressible ones.
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
fn the_plugin_describes_itself_and_names_wrong_settings() {
    if !has(&["nbdkit", "nbdinfo"]) {
        return;
    }
    let dump = run(command("nbdkit").arg("--dump-plugin").arg(plugin()));
    for line in [
        "name=uzswap",
        "max_thread_model=parallel",
        "thread_model=parallel",
        "magic_config_key=size",
        "uzswap_swap_file=yes",
    ] {
        assert!(dump.lines().any(|found| found == line), "{line} in {dump}");
    }
    assert!(dump.contains("uzswap_compressors=") && dump.contains("zstd"), "{dump}");
    let help = run(command("nbdkit").arg("--help").arg(plugin()));
    for setting in ["ram=SIZE", "lock=no|yes|try", "swap=SIZE", "swap-dir=DIR", "swap-plain=BOOL"] {
        assert!(help.contains(setting), "{setting} in {help}");
    }

    for (settings, reason) in [
        (&[][..], "size= is missing"),
        (&["size=1M", "compressor=lzx"], "lzx"),
        (&["size=1M", "compressor=deflate-iaa:work=null"], "leave out work="),
        (&["size=5000"], "whole blocks of 4096"),
        (&["size=1M", "unit=5000"], "unit_size is 5000"),
        (&["size=1M", "lock=yes"], "lock= needs ram="),
        (&["size=1M", "swap=1G"], "swap= needs ram="),
        (&["size=1M", "ram=64M", "swap=15M"], "the least that works is 16 MiB"),
        (&["size=1M", "ram=64M", "swap=4T"], "it can be 1 MiB to 2 TiB"),
        (&["size=1M", "ram=64M", "swap-dir=/var/tmp"], "swap-dir= needs swap="),
        (&["size=1M", "ram=64M", "swap-plain=yes"], "swap-plain= needs swap="),
        (&["size=1M", "ram=1M", "swap=16M"], "needs at least 4 MiB of memory"),
        (&["size=1M", "ram=64M", "swap=16M", "swap-dir=/proc"], "no swap file in /proc"),
        (&["size=1M", "ram=64M", "swap-file=/srv/disk"], "swap-key= are gone"),
        (&["size=1M", "ram=64M", "swap-key=/srv/key"], "swap-key= are gone"),
        (&["size=1M", "colour=red"], "there is no setting \"colour\""),
        (&["size=large"], "could not parse size"),
        (&["size=1M", "checksums=perhaps"], "could not decipher boolean"),
        (&["size=2T"], "at most 1 TiB"),
    ] {
        let said = refused(settings);
        assert!(said.contains(reason), "{settings:?}: {said}");
    }
    let shared = output(command("stat").args(["-f", "-c", "%T", "/dev/shm"]));
    match String::from_utf8_lossy(&shared.stdout).trim() {
        "tmpfs" => {
            let said = refused(&["size=1M", "ram=64M", "swap=16M", "swap-dir=/dev/shm"]);
            assert!(said.contains("/dev/shm lies in memory (tmpfs)"), "{said}");
        }
        other => testkit::skip!("disk", "/dev/shm is {other:?}"),
    }
}

#[test]
fn libnbd_finds_every_operation() {
    let settings = ["64M", "ram=8M", "checksums=true", "compressor=lz4"];
    let Some(server) = Server::with_nbdsh(&settings) else { return };
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
    for settings in
        [&["ram=2M", "unit=4k"][..], &["ram=4700K", "swap=16M"], &["ram=4700K", "swap=16M", "unit=16k"]]
    {
        let server = Server::new(&[&["4M", "checksums=true"], settings].concat());
        server.nbdsh_ok(RANDOM_REQUESTS);
    }
}

const RANDOM_REQUESTS: &str = r#"
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
"#;

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
    for settings in [&["64M", "checksums=true"][..], &["64M", "checksums=true", "ram=16M", "swap=128M"]] {
        verify_by_fio(&Server::new(settings));
    }
}

fn verify_by_fio(server: &Server) {
    let fuse = Fuse::new(server);
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
            testkit::skip!("kernel", "the kernel has no {name}");
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
    let Some(server) = Server::with_nbdsh(&["64M"]) else { return };
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
    // The same through a file: reads fail, instead of returning zeroes.
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
    let directory = Directory::new();
    let file = directory.join("stats");
    let stats = format!("stats={}", file.display());
    let Some(server) = Server::with_nbdsh(&["64M", "ram=16M", &stats]) else { return };
    server.nbdsh_ok("h.pwrite(b'heap' * 262144, 0)\nh.pread(4096, 0)\nh.trim(4096, 4096)");
    wait_until("the figures are written", || figures(&file)["discard_ios"] == 1);
    let figures = figures(&file);
    assert!(figures.get("swap_limit").is_none(), "{figures}");
    assert_eq!((&figures["disksize"], &figures["mem_limit"]), (&(64 << 20).into(), &(16 << 20).into()));
    assert_eq!(figures["orig_data_size"], (1 << 20) - 4096);
    assert!(figures["write_ios"] == 1 && figures["read_bytes"] == 4096, "{figures}");
    assert!(figures["write_p50_us"].as_f64().unwrap() > 0.0, "{figures}");
}

/// The lengths of a process's open files in a directory that have no name.
fn unnamed_files(pid: u32, directory: &Path) -> Vec<u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let is_there = |link: &Path| {
        let target = fs::read_link(link).unwrap_or_default().to_string_lossy().into_owned();
        target.starts_with(&*directory.to_string_lossy()) && target.ends_with("(deleted)")
    };
    descriptors
        .map(|entry| entry.path())
        .filter(|link| is_there(link))
        .map(|link| fs::metadata(link).unwrap().len())
        .collect()
}

/// Incompressible data of three times the memory, over a file: in and out by nbdcopy, then in
/// random order by libnbd, while other blocks are written and discarded. The file never has a name,
/// and is gone with the server, however that ends.
#[test]
fn pages_beyond_the_memory_limit_go_to_a_file() {
    const RAM: u64 = 24 << 20;
    if !has(&["nbdkit", "nbdinfo", "nbdcopy"]) || !has_nbdsh() {
        return;
    }
    let Some(disk) = Directory::on_disk() else { return };
    let directory = Directory::new();
    let (image, back, stats) = (directory.join("image"), directory.join("back"), directory.join("stats"));
    let mut bytes = vec![0; 3 * RAM as usize];
    let mut state = 11u64;
    bytes.chunks_exact_mut(8).for_each(|word| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        word.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
    });
    fs::write(&image, &bytes).unwrap();
    for plain in ["swap-plain=no", "swap-plain=yes"] {
        let settings = ["96M", "ram=24M", "swap=128M", "checksums=true", plain];
        let own = [format!("swap-dir={}", disk.0.display()), format!("stats={}", stats.display())];
        let mut server = Server::new(&[&settings[..], &[&own[0], &own[1]]].concat());
        run(command("nbdcopy").args(["--connections=4", "--requests=16"]).arg(&image).arg(server.uri()));
        run(command("nbdcopy").args(["--connections=4", "--requests=16"]).arg(server.uri()).arg(&back));
        assert!(fs::read(&back).unwrap()[..bytes.len()] == bytes);
        server.nbdsh_ok(&format!(
            r#"
import random
random.seed(3)
bytes_of = open({image:?}, "rb").read()
new = {{}}
for turn in range(1500):
    at = random.randrange(0, len(bytes_of), 65536)
    kind = random.random()
    if kind < 0.3:
        new[at] = random.randbytes(65536)
        h.pwrite(new[at], at, random.choice([0, nbd.CMD_FLAG_FUA]))
    elif kind < 0.35:
        new[at] = bytes(65536)
        h.trim(65536, at)
    else:
        assert h.pread(65536, at) == new.get(at, bytes_of[at:at + 65536]), at
h.flush()
for at in range(0, len(bytes_of), 65536):
    assert h.pread(65536, at) == new.get(at, bytes_of[at:at + 65536]), at
"#
        ));
        wait_until("the figures are written", || figures(&stats)["flush_ios"] != 0);
        let said = figures(&stats);
        let number = |name: &str| said[name].as_f64().unwrap_or_else(|| panic!("{name} in {said}"));
        assert!(
            number("bd_count") * 4096.0 > RAM as f64 && number("bd_writes") > number("bd_count"),
            "{said}"
        );
        assert!(number("bd_reads") * 4096.0 > RAM as f64 && number("swap_read_p99_us") > 0.0, "{said}");
        assert!(number("swap_write_amplification") >= 1.0, "{said}");
        assert_eq!(
            (number("refused_writes"), number("lost_blocks"), number("failed_reads")),
            (0.0, 0.0, 0.0)
        );
        // While objects are packed, some exist twice.
        assert!(number("mem_used_max") <= RAM as f64 * 17.0 / 16.0 + 1e6, "{said}");
        let open = unnamed_files(server.child.id(), &disk.0);
        assert!(open.len() == 1 && open[0] > RAM && disk.is_empty(), "{open:?}");
        server.kill();
        assert!(disk.is_empty());
        fs::remove_file(&back).unwrap();
    }
}

/// A full file refuses writes and keeps its content; trimming makes room.
#[test]
fn a_full_file_is_enospc() {
    let Some(disk) = Directory::on_disk() else { return };
    let place = format!("swap-dir={}", disk.0.display());
    let settings = ["64M", "ram=8M", "swap=16M", "checksums=true", &place];
    let Some(server) = Server::with_nbdsh(&settings) else { return };
    server.nbdsh_ok(
        r#"
import os
def fill():
    pieces = {}
    try:
        for at in range(0, 64 << 20, 65536):
            piece = os.urandom(65536)
            h.pwrite(piece, at)
            pieces[at] = piece
        assert False, "24 MiB took 64 MiB of noise"
    except nbd.Error as error:
        assert error.errno == "ENOSPC", error.errno
    return pieces
for turn in range(2):
    pieces = fill()
    assert len(pieces) * 65536 > 15 << 20, len(pieces)
    for at, piece in pieces.items():
        assert h.pread(65536, at) == piece, at
    h.trim(64 << 20, 0)
    assert h.pread(1 << 20, 0) == bytes(1 << 20)
"#,
    );
}

/// A server that is swapped on has locked memory and marked threads, and the OOM killer spares it.
#[test]
fn a_server_to_swap_on_is_locked() {
    if !has(&["nbdkit", "nbdinfo"]) || !has_nbdsh() {
        return;
    }
    let strict = Server::try_start(&[], &["64M", "ram=20M", "lock=yes"]);
    let is_allowed = strict.is_ok();
    if let Err(said) = strict {
        testkit::skip!("capability", "{}", said.trim());
        assert!(said.contains("is needed") || said.contains("are needed"), "{said}");
    }
    let how = if is_allowed { "lock=yes" } else { "lock=try" };
    let server = Server::start(&["-t", "4"], &["64M", "ram=24M", how]);
    let (locked, before) = (server.kilobytes("VmLck:"), server.kilobytes("VmRSS:"));
    if locked == 0 {
        return testkit::skip!("mlock", "memory cannot be locked here");
    }
    assert!(locked > 24 << 10, "{locked} KiB");
    server.nbdsh_ok(
        "import os\nn = 0\ntry:\n  for at in range(0, 64 << 20, 65536): h.pwrite(os.urandom(8192) * 8, at); n += 1\nexcept nbd.Error: pass\nassert n > 250, n",
    );
    let grown = server.kilobytes("VmRSS:").saturating_sub(before);
    assert!(grown < 3 << 10, "{grown} KiB more for threads and buffers");
    if is_allowed {
        let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", server.child.id())).unwrap();
        assert_eq!(score.trim(), "-1000");
    }
}

/// With a swap file, too, the threads exist and are marked before any write, and no memory is
/// requested later.
#[test]
fn a_swap_file_behind_locked_memory_takes_none() {
    if !has(&["nbdkit", "nbdinfo"]) || !has_nbdsh() {
        return;
    }
    let Some(disk) = Directory::on_disk() else { return };
    let place = format!("swap-dir={}", disk.0.display());
    let settings = |how| ["64M", "ram=28M", "swap=96M", &place, how].map(str::to_owned);
    let start = |how| Server::try_start(&["-t", "4"], &settings(how).each_ref().map(|setting| &**setting));
    let (server, is_allowed) = match start("lock=yes") {
        Ok(server) => (server, true),
        Err(said) => {
            testkit::skip!("capability", "{}", said.trim());
            assert!(said.contains("needed") || said.contains("page cache"), "{said}");
            (start("lock=try").unwrap(), false)
        }
    };
    let fill = "import os\npieces = {}\nfor at in range(0, 64 << 20, 65536):\n  pieces[at] = os.urandom(65536); h.pwrite(pieces[at], at)\nfor at, piece in pieces.items(): assert h.pread(65536, at) == piece, at";
    server.nbdsh_ok(fill);
    let before = server.kilobytes("VmRSS:");
    server.nbdsh_ok(fill);
    let grown = server.kilobytes("VmRSS:").saturating_sub(before);
    assert!(grown < 2 << 10, "{grown} KiB more");
    let mut names = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap().flatten() {
        // A thread may have ended.
        let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { continue };
        let (name, fields) = stat.rsplit_once(')').unwrap();
        // The ninth field, PF_MEMALLOC_NOIO of include/linux/sched.h: half of the flags that
        // PR_SET_IO_FLUSHER sets.
        let flags: u64 = fields.split_whitespace().nth(6).unwrap().parse().unwrap();
        assert!(!is_allowed || flags & 0x0008_0000 != 0, "{stat}");
        names.push(name.split_once('(').unwrap().1.to_owned());
    }
    for (name, count) in [("swap-writer", 1), ("swap-io", 2)] {
        assert_eq!(names.iter().filter(|found| *found == name).count(), count, "{name} in {names:?}");
    }
}
