//! From a request's attributes to the key that its policies meter: policy@version and subject.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

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
    /// Reads a key's text, `name@version:` and the values of the subject.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, subject) = text.split_once(':')?;
        let (name, _) = id.split_once('@')?;
        let first = match subject.split(':').next() {
            Some(value) if !value.is_empty() => value,
            _ => name,
        };
        Some(Self {
            text: text.into(),
            partition: Partition(xxh3_64(first.as_bytes()).to_le_bytes()[0]),
        })
    }

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
