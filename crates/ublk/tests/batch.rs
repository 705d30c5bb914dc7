//! Batches of a fake queue against plain bytes.

mod support;

use device::BLOCK_BYTES;
use proptest::prelude::*;
use support::{device, fill, Queue, REQUEST_BYTES};
use ublk::{Batch, Operation, Request};

const SIZE: usize = 2 << 20;
const DEPTH: usize = 24;

const WRITE: Operation = Operation::Write { is_durable: false };

fn serve(device: &device::Device, queue: &mut Queue, requests: &[Request]) {
    let mut batch = Batch::new(DEPTH as u16, REQUEST_BYTES, false).unwrap();
    assert!(batch.is_empty());
    requests.iter().for_each(|&request| batch.push(request));
    batch.serve(device, queue);
    assert!(batch.is_empty());
}

fn apply(request: &Request, plain: &mut [u8], bytes: &[u8]) {
    let (at, end) = (request.at as usize, request.at as usize + request.len);
    match request.operation {
        Operation::Write { .. } => plain[at..end].copy_from_slice(&bytes[..request.len]),
        Operation::WriteZeroes => plain[at..end].fill(0),
        // Whole blocks are discarded, parts stay.
        Operation::Discard => {
            let (first, last) = (at.next_multiple_of(BLOCK_BYTES), end / BLOCK_BYTES * BLOCK_BYTES);
            if first < last {
                plain[first..last].fill(0);
            }
        }
        _ => {}
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => Just(Operation::Read),
        4 => Just(WRITE),
        1 => Just(Operation::Write { is_durable: true }),
        1 => Just(Operation::Discard),
        1 => Just(Operation::WriteZeroes),
        1 => Just(Operation::Flush),
    ]
}

/// Requests that do not overlap, many of them neighbours, in any order: (sectors skipped before,
/// sectors, kind).
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (prop_oneof![3 => Just(0), 1 => 1u64..40], 1usize..48, prop::bool::ANY, operation());
    (0u64..3000, prop::collection::vec(one, 1..DEPTH), any::<prop::sample::Index>()).prop_map(
        |(start, list, turn)| {
            let mut sector = start;
            let mut requests = Vec::new();
            for (tag, (gap, sectors, is_block, operation)) in list.into_iter().enumerate() {
                sector += gap;
                // Half of them are pages, as swap's are.
                let sectors = if is_block { 8 } else { sectors };
                let (at, len) = (sector * 512, sectors * 512);
                sector += sectors as u64;
                if (sector * 512) as usize <= SIZE {
                    requests.push(Request { tag: tag as u16, operation, at, len });
                }
            }
            let middle = turn.index(requests.len() + 1);
            requests.rotate_left(middle);
            requests.reverse();
            requests
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn batches_equal_batches_of_plain_bytes(
        batches in prop::collection::vec(requests(), 1..12),
        has_buffers: bool,
    ) {
        let device = device(SIZE as u64, None);
        let mut plain = vec![0; SIZE];
        for (turn, requests) in batches.iter().enumerate() {
            let mut queue = Queue::new(DEPTH, has_buffers);
            for request in requests {
                fill(&mut queue.bytes[usize::from(request.tag)], (turn * DEPTH) as u64 + u64::from(request.tag) + 1);
            }
            let written = queue.bytes.clone();
            serve(&device, &mut queue, requests);
            for request in requests {
                let tag = usize::from(request.tag);
                let is_data = matches!(request.operation, Operation::Read | Operation::Write { .. });
                prop_assert_eq!(queue.results[tag], Some(if is_data { request.len as i32 } else { 0 }));
                if request.operation == Operation::Read {
                    let at = request.at as usize;
                    prop_assert!(queue.bytes[tag][..request.len] == plain[at..at + request.len], "{:?}", request);
                }
            }
            requests.iter().for_each(|request| apply(request, &mut plain, &written[usize::from(request.tag)]));
        }
        let mut all = vec![0; SIZE];
        device.read(0, &mut all).unwrap();
        prop_assert!(all == plain);
    }
}

fn pages(first_tag: u16, operation: Operation, first_page: u64, count: u16) -> Vec<Request> {
    let page = |index: u16| Request {
        tag: first_tag + index,
        operation,
        at: (first_page + u64::from(index)) * BLOCK_BYTES as u64,
        len: BLOCK_BYTES,
    };
    (0..count).map(page).collect()
}

#[test]
fn neighbours_are_one_call_and_reads_are_told_first() {
    let device = device(SIZE as u64, None);
    let mut queue = Queue::filled(DEPTH);
    // Pages in any order: two runs of writes, one of reads.
    let mut requests = pages(0, WRITE, 16, 8);
    requests.extend(pages(8, Operation::Read, 200, 4));
    requests.extend(pages(12, WRITE, 100, 3));
    requests.reverse();
    serve(&device, &mut queue, &requests);
    assert!(queue.results[..15].iter().all(|result| *result == Some(4096)), "{:?}", queue.results);
    let statistics = device.statistics();
    assert_eq!((statistics.read_ios, statistics.write_ios), (1, 2));
    assert_eq!((statistics.read_bytes, statistics.write_bytes), (4 * 4096, 11 * 4096));
    assert_eq!(queue.ended[..4], [8, 9, 10, 11]);
    assert_eq!(queue.told, [4], "what was read is told before the writes begin");
    for (index, tag) in (0..8).enumerate() {
        let mut back = [0; BLOCK_BYTES];
        device.read(((16 + index) * BLOCK_BYTES) as u64, &mut back).unwrap();
        assert!(back[..] == queue.bytes[tag][..BLOCK_BYTES], "page {index}");
    }
}

#[test]
fn a_run_is_at_most_as_long_as_the_largest_request() {
    let device = device(SIZE as u64, None);
    let mut queue = Queue::filled(DEPTH);
    serve(&device, &mut queue, &pages(0, WRITE, 0, 20));
    assert!(queue.results[..20].iter().all(|result| *result == Some(4096)));
    assert_eq!(device.statistics().write_ios, 2, "16 pages of 4 KiB are one largest request");
}

#[test]
fn a_request_that_cannot_be_copied_fails_alone() {
    for operation in [WRITE, Operation::Read] {
        let device = device(SIZE as u64, None);
        let mut queue = Queue::filled(DEPTH);
        queue.broken = Some(3);
        serve(&device, &mut queue, &pages(0, operation, 0, 6));
        let expected = [4096, 4096, 4096, -5, 4096, 4096].map(Some);
        assert_eq!(queue.results[..6], expected, "{operation:?}");
    }
}

#[test]
fn errors_are_the_kernels_numbers() {
    let device = device(SIZE as u64, None);
    let mut queue = Queue::new(DEPTH, true);
    let beyond = |tag, operation| Request { tag, operation, at: SIZE as u64, len: 4096 };
    serve(
        &device,
        &mut queue,
        &[
            beyond(0, Operation::Read),
            beyond(1, WRITE),
            beyond(2, Operation::Discard),
            beyond(3, Operation::WriteZeroes),
            Request { tag: 4, operation: Operation::Unknown, at: 0, len: 4096 },
            Request { tag: 5, operation: Operation::Flush, at: 0, len: 0 },
        ],
    );
    let (invalid, unsupported) = (Some(-22), Some(-95));
    assert_eq!(queue.results[..6], [invalid, invalid, invalid, invalid, unsupported, Some(0)]);
}

#[test]
fn without_room_each_request_has_its_own_answer_and_old_bytes_stay() {
    let device = device(64 << 20, Some(1 << 20));
    let mut state = 1u64;
    let mut refused = 0;
    let mut kept = Vec::new();
    for turn in 0..40u64 {
        let mut queue = Queue::new(DEPTH, turn % 2 == 0);
        for chunk in queue.bytes[..16].iter_mut().flat_map(|bytes| bytes.chunks_mut(8)) {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let noise = state.rotate_left(17).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            chunk.copy_from_slice(&noise.to_le_bytes());
        }
        let requests = pages(0, WRITE, turn * 16, 16);
        serve(&device, &mut queue, &requests);
        for request in &requests {
            match queue.results[usize::from(request.tag)] {
                Some(4096) => {
                    kept.push((request.at, queue.bytes[usize::from(request.tag)][..BLOCK_BYTES].to_vec()))
                }
                Some(-28) => refused += 1,
                other => panic!("{request:?}: {other:?}"),
            }
        }
    }
    assert!(refused > 0 && !kept.is_empty(), "{refused} refused, {} kept", kept.len());
    for (at, bytes) in kept {
        let mut back = vec![0; BLOCK_BYTES];
        device.read(at, &mut back).unwrap();
        assert!(back == bytes, "byte {at}");
    }
}
