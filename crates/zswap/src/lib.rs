//! The compressed pool: store, load, invalidate; entries, LRU, limits, counters, writeback
