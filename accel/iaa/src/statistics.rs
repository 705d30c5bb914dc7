//! Counters, under the kernel driver's names.

use std::sync::atomic::{AtomicU64, Ordering};

/// Calls and bytes of a queue, a device, or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Compress jobs.
    pub comp_calls: u64,
    /// Compressed bytes produced.
    pub comp_bytes: u64,
    /// Decompress jobs.
    pub decomp_calls: u64,
    /// Compressed bytes consumed.
    pub decomp_bytes: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        // Another process's figures may have any value.
        self.comp_calls = self.comp_calls.saturating_add(other.comp_calls);
        self.comp_bytes = self.comp_bytes.saturating_add(other.comp_bytes);
        self.decomp_calls = self.decomp_calls.saturating_add(other.decomp_calls);
        self.decomp_bytes = self.decomp_bytes.saturating_add(other.decomp_bytes);
    }
}

/// Whether a queue is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// In use.
    Live,
    /// Failed lately, and retried from time to time.
    Quarantined,
    /// Hung, and its access to memory was ended. It must be attached again.
    Revoked,
}

/// Statistics of one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueStatistics {
    /// As in `wq1.0`.
    pub name: String,
    /// Whether it is used.
    pub health: Health,
    /// Its jobs.
    pub traffic: Traffic,
}

/// Statistics of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// As in `iax1`.
    pub name: String,
    /// The number in its name.
    pub id: u32,
    /// Jobs of its current queues.
    pub traffic: Traffic,
    /// Its queues.
    pub queues: Vec<QueueStatistics>,
}

/// All statistics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Compress jobs that went to devices.
    pub total_comp_calls: u64,
    /// Decompress jobs that went to devices.
    pub total_decomp_calls: u64,
    /// Units compressed in software.
    pub total_sw_comp_calls: u64,
    /// Units decompressed in software.
    pub total_sw_decomp_calls: u64,
    /// Compressed bytes produced by devices.
    pub total_comp_bytes_out: u64,
    /// Compressed bytes consumed by devices.
    pub total_decomp_bytes_in: u64,
    /// Completions with an error not listed below.
    pub total_completion_einval_errors: u64,
    /// Completions that did not arrive in time.
    pub total_completion_timeout_errors: u64,
    /// Units that did not shrink into their destination.
    pub total_completion_comp_buf_overflow_errors: u64,
    /// Jobs submitted again after a page fault. Not in the kernel.
    pub page_fault_resubmissions: u64,
    /// Jobs that got no descriptor in time. Not in the kernel.
    pub descriptor_shortages: u64,
    /// Queues taken out of use for a while. Not in the kernel.
    pub quarantines: u64,
    /// Queues whose access to memory had to be ended. Not in the kernel.
    pub revocations: u64,
    /// The current devices.
    pub devices: Vec<DeviceStatistics>,
}

impl Statistics {
    /// Global figures with their names.
    pub fn globals(&self) -> [(&'static str, u64); 13] {
        [
            ("total_comp_calls", self.total_comp_calls),
            ("total_decomp_calls", self.total_decomp_calls),
            ("total_sw_comp_calls", self.total_sw_comp_calls),
            ("total_sw_decomp_calls", self.total_sw_decomp_calls),
            ("total_comp_bytes_out", self.total_comp_bytes_out),
            ("total_decomp_bytes_in", self.total_decomp_bytes_in),
            ("total_completion_einval_errors", self.total_completion_einval_errors),
            ("total_completion_timeout_errors", self.total_completion_timeout_errors),
            ("total_completion_comp_buf_overflow_errors", self.total_completion_comp_buf_overflow_errors),
            ("page_fault_resubmissions", self.page_fault_resubmissions),
            ("descriptor_shortages", self.descriptor_shortages),
            ("quarantines", self.quarantines),
            ("revocations", self.revocations),
        ]
    }
}

/// Live traffic. One add per request and queue, not per job.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct TrafficCounters {
    comp_calls: AtomicU64,
    comp_bytes: AtomicU64,
    decomp_calls: AtomicU64,
    decomp_bytes: AtomicU64,
}

impl TrafficCounters {
    #[inline]
    pub fn add(&self, is_compress: bool, calls: u64, bytes: u64) {
        let (call_counter, byte_counter) = if is_compress {
            (&self.comp_calls, &self.comp_bytes)
        } else {
            (&self.decomp_calls, &self.decomp_bytes)
        };
        call_counter.fetch_add(calls, Ordering::Relaxed);
        byte_counter.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn read(&self) -> Traffic {
        Traffic {
            comp_calls: self.comp_calls.load(Ordering::Relaxed),
            comp_bytes: self.comp_bytes.load(Ordering::Relaxed),
            decomp_calls: self.decomp_calls.load(Ordering::Relaxed),
            decomp_bytes: self.decomp_bytes.load(Ordering::Relaxed),
        }
    }

    pub fn add_all(&self, traffic: Traffic) {
        self.add(true, traffic.comp_calls, traffic.comp_bytes);
        self.add(false, traffic.decomp_calls, traffic.decomp_bytes);
    }

    pub fn reset(&self) {
        for counter in [&self.comp_calls, &self.comp_bytes, &self.decomp_calls, &self.decomp_bytes] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// Live global counters, beside the traffic of the queues.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    /// Of queues that are gone.
    pub past: TrafficCounters,
    pub sw_comp_calls: AtomicU64,
    pub sw_decomp_calls: AtomicU64,
    pub einval_errors: AtomicU64,
    pub timeout_errors: AtomicU64,
    pub overflow_errors: AtomicU64,
    pub resubmissions: AtomicU64,
    pub shortages: AtomicU64,
    pub quarantines: AtomicU64,
    pub revocations: AtomicU64,
}

impl Counters {
    /// The global part of the statistics, given the traffic of the current queues.
    pub fn read(&self, live: Traffic) -> Statistics {
        let mut all = self.past.read();
        all += live;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            total_comp_calls: all.comp_calls,
            total_decomp_calls: all.decomp_calls,
            total_sw_comp_calls: get(&self.sw_comp_calls),
            total_sw_decomp_calls: get(&self.sw_decomp_calls),
            total_comp_bytes_out: all.comp_bytes,
            total_decomp_bytes_in: all.decomp_bytes,
            total_completion_einval_errors: get(&self.einval_errors),
            total_completion_timeout_errors: get(&self.timeout_errors),
            total_completion_comp_buf_overflow_errors: get(&self.overflow_errors),
            page_fault_resubmissions: get(&self.resubmissions),
            descriptor_shortages: get(&self.shortages),
            quarantines: get(&self.quarantines),
            revocations: get(&self.revocations),
            devices: Vec::new(),
        }
    }
}

#[inline]
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
