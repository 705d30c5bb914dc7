//! The driver on devices in model time: a batch hides the devices' latency, exactly as far as
//! queues, engines and submissions allow.

mod common;
#[path = "common/model.rs"]
mod model;

use acomp::Page;
use common::{check_stream, fixed, page, settings, shrinking};
use model::{compress_all, Model, Shape};

const SUBMIT: u64 = Model::SUBMIT_NS;
const PAGE: u64 = Model::PAGE_NS;
const LATENCY: u64 = Model::LATENCY_NS;
const REQUESTS: u64 = 5;

/// Model time of five requests of eight pages.
fn time_ns(shape: Shape, batch: usize, text: &str) -> u64 {
    let pages: Vec<Page> = shrinking(8 * REQUESTS as usize).map(page).collect();
    let (model, driver) = Model::driver(shape, &pages, settings(text));
    let mut left = pages.iter();
    compress_all(&mut *fixed(&driver), &pages, batch, |stream| check_stream(stream, left.next().unwrap()));
    let statistics = driver.statistics();
    assert_eq!((statistics.total_comp_calls, statistics.total_sw_comp_calls), (8 * REQUESTS, 0));
    assert_eq!(driver.outstanding(), 0);
    assert!(model.depth() <= (shape.entries as usize).min(batch));
    model.now_ns()
}

#[test]
fn one_by_one_every_page_takes_all_of_its_devices_time() {
    let all = 8 * REQUESTS * (SUBMIT + PAGE + LATENCY);
    for devices in [1, 4] {
        let shape = Shape { devices, engines: 8, entries: 128 };
        assert_eq!(time_ns(shape, 1, ""), all);
        assert_eq!(time_ns(shape, 8, "sync_mode=sync"), all);
    }
}

#[test]
fn a_batch_takes_the_time_of_one_job_and_of_its_submissions() {
    for (devices, engines) in [(1, 8), (4, 8), (4, 2), (2, 4)] {
        let shape = Shape { devices, engines, entries: 128 };
        assert_eq!(time_ns(shape, 8, ""), REQUESTS * (8 * SUBMIT + PAGE + LATENCY), "{shape:?}");
    }
}

#[test]
fn jobs_beyond_the_engines_wait_for_them() {
    // The second engine's first job is submitted second and three others wait behind it.
    let shape = Shape { devices: 1, engines: 2, entries: 128 };
    assert_eq!(time_ns(shape, 8, ""), REQUESTS * (2 * SUBMIT + 4 * PAGE + LATENCY));
    // All submissions but the first are hidden.
    let shape = Shape { devices: 1, engines: 1, entries: 128 };
    assert_eq!(time_ns(shape, 8, ""), REQUESTS * (SUBMIT + 8 * PAGE + LATENCY));
}

#[test]
fn jobs_beyond_the_queue_are_submitted_when_earlier_ones_complete() {
    // Pairs, one after the other; each pair's first submission waits for the last pair's first job.
    let shape = Shape { devices: 1, engines: 8, entries: 2 };
    assert_eq!(time_ns(shape, 8, ""), REQUESTS * (5 * SUBMIT + 4 * (PAGE + LATENCY)));
    let shape = Shape { devices: 1, engines: 8, entries: 1 };
    assert_eq!(time_ns(shape, 8, ""), REQUESTS * 8 * (SUBMIT + PAGE + LATENCY));
}
