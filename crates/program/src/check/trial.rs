//! Runs a small program under `uzswap run`, which reveals seccomp filters and mount options.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde_json::Value;

use super::row::Row;

/// Enough for an emulated machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// MiB of the task. On a slow machine the first task may end before paging is set up.
const SIZES: [u64; 2] = [48, 256];

/// Returns the row: a task of 48 MiB in 24 MiB, with every byte checked.
pub fn row() -> Row {
    let name = "trial run";
    let [first, second] = SIZES;
    let outcome = match run(first) {
        Ok(report) if was_too_short(&report) => run(second).map(|report| (second, report)),
        other => other.map(|report| (first, report)),
    };
    match outcome.and_then(|(mib, report)| judge(mib, &report)) {
        Ok(detail) => Row::needed(name, true, detail, ""),
        Err(error) => {
            let fix =
                "see the rows above; in a container, its seccomp profile; vm.memfd_noexec must be 0 or 1";
            Row::needed(name, false, format!("{error:#}"), fix)
        }
    }
}

fn run(mib: u64) -> Result<Value> {
    // SAFETY: a NUL-terminated name.
    let raw = unsafe { libc::memfd_create(c"uzswap-report".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(std::io::Error::last_os_error()).context("memfd_create");
    }
    // SAFETY: opened just now.
    let mut file = unsafe { File::from_raw_fd(raw) };
    let report = format!("/proc/{}/fd/{raw}", std::process::id());
    let own = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("uzswap").args(["run", "--quiet", "--ram", "24M", "--report", &report, "--"]);
    command.arg(own).args(["trial-task", &(mib << 20).to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start")?;
    let mut input = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, b"fill\nread\n").context("it ended at once")?;
    drop(input);
    let status = wait(&mut child)?;
    let mut words = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut words)?;
    if !status.success() {
        bail!("{status}: {}", words.trim());
    }
    file.rewind()?;
    serde_json::from_reader(&file).with_context(|| format!("descriptor {} has no report", file.as_raw_fd()))
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > give_up {
            // Its program dies with it.
            let _ = child.kill();
            let _ = child.wait();
            bail!("it did not end within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn number(report: &Value, name: &str) -> u64 {
    report.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns whether paging was allowed but had not begun when the task ended.
fn was_too_short(report: &Value) -> bool {
    let is_all_managed = report.get("unmanaged").and_then(Value::as_array).is_some_and(Vec::is_empty);
    is_all_managed && number(report, "zswpin") == 0
}

fn judge(mib: u64, report: &Value) -> Result<String> {
    if let Some(reason) = report.pointer("/unmanaged/0").and_then(Value::as_str) {
        bail!("the program ran unmanaged: {reason}");
    }
    let (out, back) = (number(report, "zswpout"), number(report, "zswpin"));
    if out == 0 || back == 0 {
        bail!("the program ran unmanaged: {out} pages went out and {back} came back");
    }
    Ok(format!("{mib} MiB in 24 MiB: {out} pages went out, {back} came back, every byte was right"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_trial_is_judged_by_its_report() {
        let good = json!({ "zswpout": 9000, "zswpin": 6000, "unmanaged": [] });
        assert!(judge(48, &good).unwrap().contains("48 MiB in 24 MiB: 9000 pages"));
        assert!(!was_too_short(&good));
        for bad in [
            json!({ "zswpout": 0, "zswpin": 0, "unmanaged": [] }),
            json!({ "zswpout": 5, "zswpin": 5, "unmanaged": ["uzswap: it runs without uzswap's object"] }),
            json!(null),
        ] {
            assert!(judge(48, &bad).unwrap_err().to_string().contains("unmanaged"));
        }
        assert!(was_too_short(&json!({ "zswpout": 69, "zswpin": 0, "unmanaged": [] })));
        assert!(!was_too_short(&json!({ "zswpout": 0, "zswpin": 0, "unmanaged": ["no thread"] })));
    }
}
