//! A dense allocator for compressed objects: size classes, chained pages, handles, compaction
