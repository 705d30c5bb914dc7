//! Compressed swap in user space: pools and regions larger than RAM
