//! `uzswap-lab bench usemem --versus kernel-zswap`: the comparison, and that the machine's settings
//! are restored however it ends.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const ZSWAP: &str = "/sys/module/zswap/parameters";
const PATIENCE: Duration = Duration::from_secs(120);

/// Everything that a comparison changes.
#[derive(Debug, PartialEq, Eq)]
struct Machine {
    settings: Vec<(String, String)>,
    swaps: String,
    leftovers: Vec<String>,
}

impl Machine {
    /// The settings without a comparison: comparisons lock this file.
    fn at_rest() -> Self {
        let file = File::open(Path::new(ZSWAP).join("enabled")).unwrap();
        // SAFETY: locks an open file, until it is closed below.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
        let mut settings = Vec::new();
        for entry in fs::read_dir(ZSWAP).unwrap().flatten() {
            let value = fs::read_to_string(entry.path()).unwrap_or_default();
            settings.push((entry.path().display().to_string(), value));
        }
        settings.sort();
        let mut leftovers = Vec::new();
        for directory in
            ["/var/tmp", "/var/lib", "/tmp", "/root", "/", "/sys/fs/cgroup", "/sys/fs/cgroup/memory"]
        {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.contains("uzswap-bench-") {
                    leftovers.push(format!("{directory}/{name}"));
                }
            }
        }
        let swaps: Vec<_> = fs::read_to_string("/proc/swaps")
            .unwrap()
            .lines()
            .skip(1)
            .filter_map(|line| line.split_ascii_whitespace().next().map(str::to_owned))
            .collect();
        Machine { settings, swaps: swaps.join(" "), leftovers }
    }
}

/// Exit code, output and messages.
type Ended = (Option<i32>, String, String);

struct Comparison {
    child: Child,
}

impl Comparison {
    fn start(size: &str) -> Self {
        Self::start_with(size, "kernel-zswap")
    }

    fn start_with(size: &str, versus: &str) -> Self {
        Self::start_by(&["--size", size, "--compressor", "zstd", "--json", "--versus", versus])
    }

    fn start_by(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap-lab"));
        command.args(["bench", "usemem"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        Comparison { child: command.spawn().expect("the program starts") }
    }

    /// Waits until the kernel swaps to the comparison's own file; returns false if it ended before.
    fn wait_for_swap(&mut self) -> bool {
        let name = format!(".uzswap-bench-{}.swap", self.child.id());
        self.wait_for(|_| fs::read_to_string("/proc/swaps").unwrap().contains(&name))
    }

    /// Waits until the job runs in its cgroup, after all changes; returns false if it ended before.
    fn wait_for_job(&mut self) -> bool {
        let group = format!("uzswap-bench-{}", self.child.id());
        self.wait_for(|pid| {
            let is_inside = |child| {
                fs::read_to_string(format!("/proc/{child}/cgroup")).is_ok_and(|text| text.contains(&group))
            };
            children(pid).into_iter().any(is_inside)
        })
    }

    fn wait_for(&mut self, is_so: impl Fn(u32) -> bool) -> bool {
        let give_up = Instant::now() + PATIENCE;
        while Instant::now() < give_up {
            if is_so(self.child.id()) {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("it does not come to that in {PATIENCE:?}");
    }

    fn end(mut self) -> Ended {
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code(), out, err)
    }
}

/// The reason why no comparison can be made here, if any.
fn missing() -> Option<String> {
    // SAFETY: no memory is involved.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root".to_owned());
    }
    if !Path::new(ZSWAP).exists() {
        return Some("this kernel has no zswap".to_owned());
    }
    let managed =
        Command::new(env!("CARGO_BIN_EXE_uzswap-lab")).args(["run", "--ram", "64M", "--", "true"]).output();
    let managed = managed.expect("the program starts");
    (!managed.status.success()).then(|| String::from_utf8_lossy(&managed.stderr).into_owned())
}

/// Runs a comparison, again while another process makes one.
fn patiently(run: impl Fn() -> Ended) -> Ended {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let ended = run();
        if !ended.2.contains("another comparison") || Instant::now() > give_up {
            return ended;
        }
    }
}

/// A whole comparison. An error is a reason to skip.
fn compare(size: &str) -> Result<Value, String> {
    let (code, out, err) = patiently(|| Comparison::start(size).end());
    if code == Some(0) {
        return Ok(serde_json::from_str(&out).expect("JSON"));
    }
    // A container may have no disk for a swap file, or no cgroup; other errors are failures.
    let reasons = ["no place for a swap file", "cgroup", "another comparison"];
    assert!(reasons.iter().any(|reason| err.contains(reason)), "{err}");
    Err(err)
}

#[test]
fn the_machine_is_as_before_however_a_comparison_ends() {
    if let Some(reason) = missing() {
        testkit::skip!("swap", "{reason}");
        return;
    }
    let before = Machine::at_rest();
    let result = match compare("96M") {
        Ok(result) => result,
        Err(reason) => {
            testkit::skip!("swap", "{reason}");
            assert_eq!(Machine::at_rest(), before);
            return;
        }
    };
    assert_eq!(Machine::at_rest(), before, "after a whole comparison");
    let kernel = &result["kernel_zswap"];
    assert_eq!(kernel["compressor"], "lzo");
    assert!(kernel["counters"]["zswpout"].as_u64().unwrap() > 1000, "it did swap: {kernel:#}");
    assert_eq!(kernel["phases"].as_array().unwrap().len(), 3);
    let limit = result["ram_bytes"].as_u64().unwrap();
    assert!(kernel["cgroup_peak_bytes"].as_u64().unwrap() <= limit, "within the limit: {kernel:#}");
    assert!(kernel["pool_peak_bytes"].as_u64().unwrap() > 0);
    for name in ["fill_throughput", "read_throughput", "touch_throughput", "touch_p50", "touch_p99", "cpu"] {
        assert!(result["ratios"][name].as_f64().is_some_and(|ratio| ratio > 0.0), "{name} in {result:#}");
    }
    let rate = |run: &str| result[run]["phases"][0]["bytes_per_second"].as_f64().unwrap();
    let ratio = result["ratios"]["fill_throughput"].as_f64().unwrap();
    assert!((ratio - rate("managed") / rate("kernel_zswap")).abs() < 1e-9);

    let again = |versus: &str, check: &dyn Fn(Comparison) -> Ended| {
        patiently(|| check(Comparison::start_with("96M", versus)))
    };

    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGKILL] {
        let (code, _, err) = again("kernel-zswap", &|mut comparison| {
            if comparison.wait_for_swap() {
                // SAFETY: a signal to our own child.
                unsafe { libc::kill(comparison.child.id() as i32, signal) };
            }
            comparison.end()
        });
        assert_eq!(code, None, "signal {signal} ended it: {err}");
        assert_eq!(Machine::at_rest(), before, "after signal {signal}");
    }

    // Without the process that restores the settings, the comparison does it itself.
    let (code, out, err) = again("kernel-zswap", &|mut comparison| {
        // During the changes, the comparison would be given up.
        if comparison.wait_for_job() {
            let watcher = watcher_of(comparison.child.id()).expect("a watcher runs");
            // SAFETY: a signal to a child of our own child.
            unsafe { libc::kill(watcher, libc::SIGKILL) };
        }
        comparison.end()
    });
    assert!(code == Some(0) && out.contains("ratios"), "{err}");
    assert_eq!(Machine::at_rest(), before, "after the watcher's end");

    // Finished measurements are printed although the kernel refuses.
    let (code, out, err) = again("kernel-zswap=nonesuch", &|comparison| comparison.end());
    assert!(code == Some(125) && err.contains("nonesuch"), "{err}");
    let result: Value = serde_json::from_str(&out).expect("JSON");
    assert!(result["managed"].is_object() && result["kernel_zswap"].is_null(), "{result:#}");
    assert_eq!(Machine::at_rest(), before, "after a refusal");

    // Both with a disk: the kernel's swap file beside ours.
    let arguments = ["--size", "96M", "--random", "--swap", "256M", "--json", "--versus", "kernel-swap"];
    let (code, out, err) = patiently(|| Comparison::start_by(&arguments).end());
    assert_eq!(Machine::at_rest(), before, "after swap alone");
    if err.contains("no swap file") || err.contains("--swap-dir") {
        testkit::skip!("swap", "{err}");
        return;
    }
    assert_eq!(code, Some(0), "{err}");
    let result: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(result["kernel_zswap"]["kind"], "kernel swap");
    assert!(result["kernel_zswap"]["compressor"].is_null());
    for run in ["managed", "kernel_zswap"] {
        // Half of it is out at a time, and nothing of it compresses.
        for figure in ["disk_written_bytes", "disk_read_bytes"] {
            assert!(result[run][figure].as_u64().unwrap() > 32 << 20, "{run} {figure}: {result:#}");
        }
    }
    assert!(result["ratios"]["disk_written"].as_f64().is_some_and(|ratio| ratio > 0.0));
}

fn children(pid: u32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The child of a comparison that waits to restore the settings.
fn watcher_of(pid: u32) -> Option<i32> {
    children(pid).into_iter().find(|pid| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.contains("usemem-undo")
    })
}

#[test]
fn an_unknown_comparison_lists_the_known() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uzswap-lab"));
    let output = command.args(["bench", "usemem", "--versus", "zram"]).output().expect("the program starts");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("kernel-zswap=COMPRESSOR"), "{err}");
}
