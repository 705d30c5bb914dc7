//! T16 and T16H: SIMD compression of 4 KiB pages of program memory
