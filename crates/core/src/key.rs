//! From a request's attributes to the key that its policies meter: policy@version and subject.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The attributes of one request, as the caller gave them.
pub type Attributes = BTreeMap<String, String>;

/// One of the 256 parts of a store. All keys of a subject's first attribute share one, so that its policies are one call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Partition(pub u8);

/// A policy@version with one subject: what a meter, an allotment and a usage counter belong to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    text: Arc<str>,
    partition: Partition,
}

impl Key {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn partition(&self) -> Partition {
        self.partition
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
