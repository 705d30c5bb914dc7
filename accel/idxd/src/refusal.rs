//! The error of everything that users ask for.

/// Why something cannot be done, and the fix, in words for users. Callers show it; none acts on the
/// cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);
