//! What the driver itself costs, and what batches gain on engines that take as long as published
//! ones.
//!
//! `cargo bench -p uzswap-iaa`. All devices are emulated: nothing here says how fast a real one is.
//!
//! - *own cost*: engines that do nothing and answer in the submission. The device's time is that of
//!   handing over the same descriptors without a driver; what is left over is the driver's. The
//!   fastest of many rounds counts.
//! - *latency*: engines that take 3.5 us a page, by the clock, on 4 devices. The median of single
//!   requests and of batches of 8, side by side.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use acomp::{
    Algorithm, CompressRequest, Context, DecompressRequest, Object, Page, UnitError, MAX_BATCH, PAGE_SIZE,
};
use iaa::{Driver, Iaa, Settings};
use idxd::aecs::FIXED;
use idxd::emulated::{EmulateSpec, Machine, QueueId};
use idxd::{Completion, Descriptor, Portal, Submission};

const ROUNDS: usize = 300;
const PAGES_A_ROUND: usize = 4096;

fn driver(spec: &str, settings: Settings) -> Arc<Driver> {
    Arc::new(Driver::emulated(&spec.parse().unwrap(), settings).unwrap())
}

/// Nanoseconds a page of the fastest round.
fn fastest(mut round: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed().as_nanos() as f64 / PAGES_A_ROUND as f64);
    }
    best
}

/// Handing over prepared descriptors, and nothing else.
fn device_ns(spec: &str, is_compress: bool) -> f64 {
    let machine = Machine::new(&spec.parse::<EmulateSpec>().unwrap()).unwrap();
    let portal = machine.open(QueueId { device: 0, queue: 0 }).unwrap();
    let portal: &dyn Portal = &portal;
    let completions: [Completion; MAX_BATCH] = [const { Completion::new() }; MAX_BATCH];
    let source = [1u8; PAGE_SIZE];
    let mut output = [0u8; PAGE_SIZE];
    let descriptors = completions.each_ref().map(|completion| {
        let (source, destination) = ((source.as_ptr(), 4096), (output.as_mut_ptr(), 4096));
        if is_compress {
            Descriptor::compress_fixed(completion, source, destination, &FIXED)
        } else {
            Descriptor::decompress(completion, source, destination)
        }
    });
    fastest(|| {
        for _ in 0..PAGES_A_ROUND / MAX_BATCH {
            for descriptor in &descriptors {
                // SAFETY: all buffers outlive the machine, whose engines answer inside the
                // submission.
                assert_eq!(unsafe { portal.submit(black_box(descriptor)) }, Submission::Accepted);
            }
        }
    })
}

/// Requests of `batch` units.
fn driver_ns(context: &mut dyn Context, batch: usize, is_compress: bool) -> f64 {
    let pages = vec![[1u8; PAGE_SIZE]; batch];
    let pages: Vec<&Page> = pages.iter().collect();
    let mut buffers = vec![[0u8; PAGE_SIZE]; batch];
    let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| buffer.as_mut_slice()).collect();
    let objects: Vec<Object> = pages.iter().map(|page| Object::whole(&page[..2000])).collect();
    let mut results = vec![Err(UnitError::Failed); batch];
    let mut sum = 0;
    let time = fastest(|| {
        for _ in 0..PAGES_A_ROUND / batch {
            if is_compress {
                context.compress(&mut CompressRequest {
                    pages: black_box(&pages),
                    unit_size: PAGE_SIZE,
                    outputs: &mut outputs,
                    results: &mut results,
                });
            } else {
                context.decompress(&mut DecompressRequest {
                    objects: black_box(&objects),
                    outputs: &mut outputs,
                    results: &mut results,
                });
            }
            sum += results.iter().map(|result| result.unwrap()).sum::<usize>();
        }
    });
    assert!(sum > 0);
    time
}

fn own_cost() {
    println!("own cost, null engines, ns a page (emulated)");
    println!(
        "  {:<44} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "devices", "device", "batch 1", "batch 8", "own 1", "own 8", "ratio"
    );
    for (label, spec) in
        [("1 device, 1 queue", "work=null"), ("4 devices, 2 queues each", "work=null,devices=4,queues=2")]
    {
        for (direction, is_compress) in [("compress", true), ("decompress", false)] {
            let device = device_ns(spec, is_compress);
            let driver = driver(spec, Settings::default());
            let mut context = Iaa::fixed(driver).context_for(PAGE_SIZE).unwrap();
            let single = driver_ns(&mut *context, 1, is_compress);
            let batch = driver_ns(&mut *context, MAX_BATCH, is_compress);
            let (own_1, own_8) = (single - device, batch - device);
            println!(
                "  {:<44} {device:>8.1} {single:>8.1} {batch:>8.1} {own_1:>8.1} {own_8:>8.1} {:>7.1}x",
                format!("{label}, {direction}"),
                own_1 / own_8
            );
        }
    }
}

/// Medians and 99th percentiles of a page's share of a request, in ns.
fn latencies(context: &mut dyn Context, batch: usize, requests: usize) -> (f64, f64) {
    let pages = vec![[1u8; PAGE_SIZE]; batch];
    let pages: Vec<&Page> = pages.iter().collect();
    let mut buffers = vec![[0u8; PAGE_SIZE]; batch];
    let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| buffer.as_mut_slice()).collect();
    let mut results = vec![Err(UnitError::Failed); batch];
    let mut times: Vec<f64> = (0..requests)
        .map(|_| {
            let start = Instant::now();
            context.compress(&mut CompressRequest {
                pages: &pages,
                unit_size: PAGE_SIZE,
                outputs: &mut outputs,
                results: &mut results,
            });
            assert!(results.iter().all(Result::is_ok));
            start.elapsed().as_nanos() as f64 / batch as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[requests / 2], times[requests * 99 / 100])
}

fn latency() {
    println!("latency, timed engines of 3.5 us a page, ns a page (emulated)");
    for (label, spec) in [
        ("4 devices, 8 engines each", "work=timed:3500,devices=4,queues=2"),
        ("4 devices, 2 engines each", "work=timed:3500,devices=4,queues=2,engines=2"),
        ("4 devices, 1 engine each", "work=timed:3500,devices=4,queues=2,engines=1"),
        ("1 device, 2 engines", "work=timed:3500,queues=2,engines=2"),
    ] {
        let driver = driver(spec, Settings::default());
        let mut context = Iaa::fixed(driver.clone()).context_for(PAGE_SIZE).unwrap();
        let (single, single_99) = latencies(&mut *context, 1, 40_000);
        let (batch, batch_99) = latencies(&mut *context, MAX_BATCH, 20_000);
        println!(
            "  {label:<28} one at a time p50 {single:.0} p99 {single_99:.0}; batch of 8 p50 {batch:.0} p99 {batch_99:.0}; \
             {:.2} of it",
            batch / single
        );
        let statistics = driver.statistics();
        let calls: Vec<u64> = statistics
            .devices
            .iter()
            .flat_map(|device| &device.queues)
            .map(|queue| queue.traffic.comp_calls)
            .filter(|&calls| calls > 0)
            .collect();
        let (least, most) = (calls.iter().min().unwrap(), calls.iter().max().unwrap());
        println!(
            "    jobs of the {} compressing queues: {least} to {most}, {:.3} % apart",
            calls.len(),
            (most - least) as f64 / *most as f64 * 100.0
        );
    }
}

fn main() {
    own_cost();
    latency();
}
