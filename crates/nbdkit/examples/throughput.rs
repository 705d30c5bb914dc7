//! The plugin against nbdkit's own memory disk, through one client, on pages of one's own:
//!
//! ```text
//! cargo build --release -p uzswap-nbdkit
//! cargo run --release -p uzswap-nbdkit --example throughput -- HEAP.pages [OTHER.pages ...]
//! ```
//!
//! All servers run side by side and take turns, workload by workload; the figure is the median of
//! the turns. The client speaks plain NBD over a Unix socket, with 1 or 8 requests in flight on one
//! connection. Memory is all that the server has after the disk was filled (RssAnon), for each byte
//! that was stored.

use std::error::Error;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 128 << 20;
const TURNS: usize = 5;
const READ: u16 = 0;
const WRITE: u16 = 1;

const SERVERS: [(&str, &[&str]); 7] = [
    ("memory zstd", &["memory", "allocator=zstd"]),
    ("memory malloc", &["memory", "allocator=malloc"]),
    ("uzswap auto", &["", "compressor=auto"]),
    ("uzswap lz4", &["", "compressor=lz4"]),
    ("auto 16k", &["", "compressor=auto", "unit=16k"]),
    ("zstd:1 16k", &["", "compressor=zstd:1", "unit=16k"]),
    ("zstd:1 64k", &["", "compressor=zstd:1", "unit=64k"]),
];

struct Workload {
    name: &'static str,
    kind: u16,
    bytes: usize,
    is_random: bool,
    in_flight: usize,
    requests: usize,
}

const fn workload(
    name: &'static str,
    kind: u16,
    bytes: usize,
    is_random: bool,
    in_flight: usize,
    requests: usize,
) -> Workload {
    Workload { name, kind, bytes, is_random, in_flight, requests }
}

const WORKLOADS: [Workload; 8] = [
    workload("write 64k in order, 1", WRITE, 64 << 10, false, 1, 1024),
    workload("write 64k in order, 8", WRITE, 64 << 10, false, 8, 1024),
    workload("read 64k in order, 1", READ, 64 << 10, false, 1, 1024),
    workload("read 64k in order, 8", READ, 64 << 10, false, 8, 1024),
    workload("write 4k at random, 1", WRITE, 4096, true, 1, 4000),
    workload("write 4k at random, 8", WRITE, 4096, true, 8, 4000),
    workload("read 4k at random, 1", READ, 4096, true, 1, 6000),
    workload("read 4k at random, 8", READ, 4096, true, 8, 6000),
];

struct Server {
    child: Child,
    socket: PathBuf,
    stream: UnixStream,
}

fn word<const N: usize>(stream: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Server {
    fn start(arguments: &[&str], number: usize) -> Result<Self, Box<dyn Error>> {
        let own = std::env::current_exe()?;
        let plugin = own.ancestors().nth(2).ok_or("target")?.join("libnbdkit_uzswap_plugin.so");
        let socket = std::env::temp_dir().join(format!("uzswap-throughput-{}-{number}", std::process::id()));
        let _ = fs::remove_file(&socket);
        let name = if arguments[0].is_empty() { plugin } else { arguments[0].into() };
        let child = Command::new("nbdkit")
            .args(["-f", "-t", "8", "-U"])
            .arg(&socket)
            .arg(name)
            .arg(format!("size={DISK_BYTES}"))
            .args(&arguments[1..])
            .stdin(Stdio::null())
            .spawn()?;
        let start = Instant::now();
        let mut stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(_) if start.elapsed() < Duration::from_secs(10) => {
                    std::thread::sleep(Duration::from_millis(5))
                }
                Err(error) => return Err(error.into()),
            }
        };
        // The fixed newstyle handshake, the default export, no zeroes behind it.
        let _: [u8; 18] = word(&mut stream)?;
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(&[b"IHAVEOPT".as_slice(), &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat())?;
        let size: [u8; 10] = word(&mut stream)?;
        assert_eq!(size[..8], DISK_BYTES.to_be_bytes());
        Ok(Server { child, socket, stream })
    }

    fn anonymous_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
    }

    /// Bytes a second.
    fn run(&mut self, workload: &Workload, corpus: &[u8], seed: u64) -> std::io::Result<f64> {
        let mut state = seed;
        let places = DISK_BYTES / workload.bytes as u64;
        let mut payload = vec![0; workload.bytes];
        let start = Instant::now();
        let (mut sent, mut received) = (0, 0);
        while received < workload.requests {
            while sent < workload.requests && sent - received < workload.in_flight {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let place = if workload.is_random { (state >> 33) % places } else { sent as u64 % places };
                let mut header = [0; 28];
                header[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
                header[6..8].copy_from_slice(&workload.kind.to_be_bytes());
                header[16..24].copy_from_slice(&(place * workload.bytes as u64).to_be_bytes());
                header[24..].copy_from_slice(&(workload.bytes as u32).to_be_bytes());
                self.stream.write_all(&header)?;
                if workload.kind == WRITE {
                    let from = (state >> 20) as usize % (corpus.len() / workload.bytes) * workload.bytes;
                    self.stream.write_all(&corpus[from..from + workload.bytes])?;
                }
                sent += 1;
            }
            let reply: [u8; 16] = word(&mut self.stream)?;
            assert_eq!(reply[4..8], [0; 4], "no error");
            if workload.kind == READ {
                self.stream.read_exact(&mut payload)?;
            }
            received += 1;
        }
        Ok((workload.requests * workload.bytes) as f64 / start.elapsed().as_secs_f64())
    }

    /// Fills the disk, in order, with all of the corpus again and again; reads it back and
    /// compares.
    fn fill(&mut self, corpus: &[u8]) -> std::io::Result<()> {
        for kind in [WRITE, READ] {
            for at in (0..DISK_BYTES).step_by(64 << 10) {
                let from = at as usize % corpus.len();
                let wanted = &corpus[from..from + (64 << 10)];
                let mut header = [0; 28];
                header[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
                header[6..8].copy_from_slice(&kind.to_be_bytes());
                header[16..24].copy_from_slice(&at.to_be_bytes());
                header[24..].copy_from_slice(&(64u32 << 10).to_be_bytes());
                self.stream.write_all(&header)?;
                if kind == WRITE {
                    self.stream.write_all(wanted)?;
                }
                let _: [u8; 16] = word(&mut self.stream)?;
                if kind == READ {
                    let mut back = vec![0; 64 << 10];
                    self.stream.read_exact(&mut back)?;
                    assert!(back == wanted, "every byte comes back");
                }
            }
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(file: &Path) -> Result<(), Box<dyn Error>> {
    let mut corpus = fs::read(file)?;
    corpus.truncate(corpus.len() / (64 << 10) * (64 << 10));
    if corpus.is_empty() {
        return Err(format!("{} has less than 64 KiB", file.display()).into());
    }
    let mut servers = Vec::new();
    let mut bytes_of_memory = Vec::new();
    for (number, (_, arguments)) in SERVERS.iter().enumerate() {
        let mut server = Server::start(arguments, number)?;
        server.fill(&corpus)?;
        bytes_of_memory.push(server.anonymous_bytes() as f64 / DISK_BYTES as f64);
        servers.push(server);
    }
    println!("\n{}: MB/s, and times that of {}", file.display(), SERVERS[0].0);
    print!("{:24}", "");
    SERVERS.iter().for_each(|(name, _)| print!("{name:>20}"));
    println!();
    for workload in &WORKLOADS {
        let mut rates = vec![Vec::new(); SERVERS.len()];
        for turn in 0..TURNS {
            for (server, rates) in servers.iter_mut().zip(&mut rates) {
                rates.push(server.run(workload, &corpus, turn as u64)?);
            }
        }
        let medians: Vec<f64> = rates.into_iter().map(median).collect();
        print!("{:24}", workload.name);
        medians.iter().for_each(|rate| print!("{:>12.1} {:>6.2}x", rate / 1e6, rate / medians[0]));
        println!();
    }
    print!("{:24}", "memory a stored byte");
    bytes_of_memory.iter().for_each(|bytes| print!("{bytes:>12.3} {:>6.2}x", bytes / bytes_of_memory[0]));
    println!();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        return Err("which files of pages?".into());
    }
    files.iter().try_for_each(|file| measure(file))
}
