//! What is assumed about real devices without a source that proves it, in one place.
//!
//! The architecture specification was not available; everything here is reasoned from software that drives the
//! hardware. The emulated device reads these constants, so that a correction is one edit. Drivers should not depend
//! on any of them.
