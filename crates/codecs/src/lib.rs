//! The software compressors behind acomp: none, lz4, zstd, deflate, t16, auto

pub mod t16;
