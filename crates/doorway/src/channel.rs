//! The words on the connection between a forking process and its child, over which the child gets
//! its userfaultfds.
//!
//! The connection is an unnamed socket pair, which no other process can reach. The agent makes it,
//! and the forking thread takes its end out of the agent's file table (pidfd_getfd); the agent
//! permits that to the program (PR_SET_PTRACER). In processes that may not be inspected, as after
//! giving up root, the kernel does not: the agent gives that end to the supervisor, which gives it
//! to the program. Then the others close that end, so that only parent and child have it.
//!
//! The connection holds descriptors in transit. When its last end is closed, they are closed too,
//! and a waiting peer sees the end.
//!
//! | word | from | meaning | descriptors |
//! |---|---|---|---|
//! | back | parent | fork() has returned | - |
//! | take | child | it has a thread that can take over | - |
//! | inherits | parent's control thread | go on with the copies; addresses of pages that are in place follow | its two |
//! | swap | parent's control thread | behind *inherits* where there is a swap file: the child's row there | the file, twice |
//! | root | parent's control thread | behind these where the forking thread has changed its root directory: the agent's | the directory, twice |
//! | complete | parent's control thread | everything is in place, start again | - |

/// fork() has returned in the parent.
pub const BACK: u64 = 1;
/// The child is ready.
pub const TAKE: u64 = 2;
/// The child inherits.
pub const INHERITS: u64 = 3;
/// The child starts again.
pub const COMPLETE: u64 = 4;
/// The child's row in the swap file, and the file.
pub const SWAP: u64 = 5;
/// The root directory of the agent.
pub const ROOT: u64 = 6;

/// The program's request to the supervisor, whose packets `ledger::wire` describes.
pub mod supervisor {
    /// Bytes of a packet.
    pub const PACKET_BYTES: usize = 504;
    /// `Kind::Take`, the packet's first word.
    pub const TAKE: u32 = 17;
    /// The first of the two words, low half first, that tell the cookie of the wanted end.
    pub const TOKEN: usize = 2;
}
