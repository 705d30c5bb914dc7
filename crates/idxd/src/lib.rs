//! Intel IAA devices, work queues, portals and descriptors, and the emulated device
