//! Dask's workers within their budgets. `UZSWAP_TEST_DASK_PYTHON` names a Python of a virtual
//! environment with the packages distributed, pandas and pyarrow.

mod support;

use support::{can_manage, command, managed, own, Ran, Scratch};

fn has_dask(python: &str) -> bool {
    let needs = "import distributed, dask.dataframe, pandas, pyarrow";
    let has =
        support::is_installed(python) && Ran::of(&mut command(&[python, "-c", needs])).status == Some(0);
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
    let job = own("../../examples/limited/join.py");
    let words = [python.as_str(), job.to_str().unwrap()];
    let bare = Ran::of(&mut command(&words));
    bare.assert_status(0);
    let Some(ran) = managed("380M", &["-q", "--verify"], &words) else { return };
    ran.assert_paged().assert_all_managed().assert_says(&["spilled to disk, MiB: [0, 0]"]);
    assert_eq!(ran.printed, bare.printed, "{ran}");
}
