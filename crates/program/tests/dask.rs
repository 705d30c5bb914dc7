//! Dask's workers within their budgets. `UZSWAP_TEST_DASK_PYTHON` names a Python of a virtual
//! environment with the packages distributed, pandas and pyarrow.

mod support;

use std::path::Path;
use std::process::Command;

use support::{can_manage, managed, Scratch};

fn has_dask(python: &str) -> bool {
    let needs = "import distributed, dask.dataframe, pandas, pyarrow";
    let output = Command::new(python).args(["-c", needs]).output();
    let has = output.as_ref().is_ok_and(|output| output.status.success());
    if !has {
        testkit::skip!(
            "tool",
            "{python} has no distributed, pandas and pyarrow (set UZSWAP_TEST_DASK_PYTHON)"
        );
    }
    has
}

/// A LocalCluster's client, scheduler, nannies and workers share one budget. The workers hold more
/// than fits, and the sums equal the bare run's.
#[test]
fn a_join_on_a_local_cluster() {
    let python = std::env::var("UZSWAP_TEST_DASK_PYTHON").unwrap_or_else(|_| "python3".into());
    if !can_manage() || !has_dask(&python) {
        return;
    }
    std::env::set_var("ROWS", "2400000");
    let scratch = Scratch::new("dask");
    std::env::set_current_dir(scratch.path(".")).unwrap();
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/limited/join.py");
    let command = [python.as_str(), job.to_str().unwrap()];
    let bare = Command::new(command[0]).args(&command[1..]).output().unwrap();
    assert!(bare.status.success(), "{}", String::from_utf8_lossy(&bare.stderr));
    let (output, report) = managed("380M", &scratch, &["-q", "--verify"], &command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&bare.stdout), "{said}");
    assert!(said.contains("spilled to disk, MiB: [0, 0]"), "{said}");
    assert!(report["zswpout"].as_u64().unwrap() > 1000, "nothing was evicted: {report}");
    assert_eq!(report["unmanaged"], serde_json::json!([]), "{report}");
}
