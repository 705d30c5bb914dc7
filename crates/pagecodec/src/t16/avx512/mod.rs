//! The encoder and decoder with AVX-512 (F, BW, DQ, VL, VBMI, VBMI2, IFMA) and BMI1/2.
//!
//! Two habits throughout, both because of AMD: values are compressed to a register and stored whole, never with the
//! memory form of the compress instructions (microcode), and nothing is gathered or scattered (slow; permutes of whole
//! tables in registers do the same work).

mod decode;

pub(crate) use decode::decode;
