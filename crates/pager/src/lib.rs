//! Address space, folios, staging, reclaim and the fault service
