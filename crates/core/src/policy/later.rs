//! What the file format has and this version doesn't do yet. Its shape is checked, so that a file can be written
//! ahead, and its use is refused: a rule that is silently not applied is worse than none.

/// What a message says of such a value.
pub(super) const NOT_YET: &str = "not supported yet";

/// Keys of a policy that are known and of no use yet.
pub(super) const KEYS: &[&str] = &["home", "standby"];
