//! From a request's attributes to the key that its policies meter: policy@version and subject.
//!
//! A key is text, `name@version:` and the values of the policy's key attributes joined by `:`, because it goes
//! into store keys, messages, exports and logs. It is printable ASCII, of bounded length, and says exactly which
//! subject it means: two subjects never share a text, and a text is read back by [`Key::parse`].
//!
//! Values are taken as they come, with one exception: they are put in Unicode's composed form (NFC), so that the
//! two ways of writing an é are one subject. Nothing is trimmed and no case is folded: whether `Acme` is `acme` is
//! the caller's to know. Every byte but `A-Z a-z 0-9 . _ ~ -` is percent-escaped.
//!
//! Values of attributes that a policy calls sensitive, and those that aren't safe to show (see `shown`), are hashed:
//! `%.` and 22 characters.

mod hash;
mod shown;

use crate::policy::{Policy, limits};
use icu_normalizer::ComposingNormalizerBorrowed;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

pub use hash::SubjectHash;
pub use shown::MAX_SHOWN_BYTES;

/// The attributes of one request, as the caller gave them.
pub type Attributes = BTreeMap<String, String>;

/// Most attributes in one request.
pub const MAX_ATTRIBUTES: usize = 64;
/// Longest name of an attribute, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest value of an attribute, bytes, before and after it is put in composed form.
pub const MAX_VALUE_BYTES: usize = 256;
/// Longest subject, bytes: the values of the key attributes together, in composed form.
pub const MAX_SUBJECT_BYTES: usize = 1024;
/// Longest text of a key, bytes: name, `@`, version, and the values, hashed or escaped, each after a colon.
pub const MAX_KEY_BYTES: usize =
    64 + 1 + 10 + limits::MAX_KEY_ATTRIBUTES * (1 + 3 * MAX_SHOWN_BYTES);

/// An empty value; a lone `%` is no escape, so that one empty value and no value at all differ.
const EMPTY: &str = "%";

/// One of the 256 parts of a store. All keys with one first value share one, so that the policies of a tenant are one
/// call; but a hashed value isn't the same in two policies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Partition(pub u8);

/// A policy@version with one subject: what a meter, an allotment and a usage counter belong to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    text: Arc<str>,
    partition: Partition,
}

/// Why a request's attributes make no key. All are the caller's mistakes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("{count} attributes; expected at most {MAX_ATTRIBUTES}")]
    TooManyAttributes { count: usize },
    #[error("an attribute without a name; expected 1 to {MAX_NAME_BYTES} bytes")]
    EmptyName,
    #[error(
        "the attribute name that begins with {start:?} has {bytes} bytes; expected at most {MAX_NAME_BYTES}"
    )]
    NameTooLong { start: String, bytes: usize },
    #[error(
        "attribute {attribute:?}: its value has {bytes} bytes; expected at most {MAX_VALUE_BYTES}"
    )]
    ValueTooLong { attribute: String, bytes: usize },
    #[error(
        "policy {policy:?}: the subject has {bytes} bytes over all key attributes; expected at most {MAX_SUBJECT_BYTES}"
    )]
    SubjectTooLong { policy: String, bytes: usize },
    #[error("attribute {attribute:?} is missing; policy {policy:?} has it in its key")]
    Missing { policy: String, attribute: String },
}

/// Checks the bounds of a request's attributes, whether or not a policy looks at them.
pub fn check_attributes(attributes: &Attributes) -> Result<(), KeyError> {
    if attributes.len() > MAX_ATTRIBUTES {
        return Err(KeyError::TooManyAttributes {
            count: attributes.len(),
        });
    }
    for (name, value) in attributes {
        if name.is_empty() {
            return Err(KeyError::EmptyName);
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(KeyError::NameTooLong {
                start: name.chars().take(16).collect(),
                bytes: name.len(),
            });
        }
        bounded(name, value)?;
    }
    Ok(())
}

/// Unicode's composed form (NFC); text that is in it already is borrowed.
pub(crate) fn normalise(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        Cow::Borrowed(text)
    } else {
        const NFC: ComposingNormalizerBorrowed<'static> = ComposingNormalizerBorrowed::new_nfc();
        NFC.normalize(text)
    }
}

/// The normalised value of an attribute, if it is within bounds.
pub(crate) fn bounded<'a>(attribute: &str, value: &'a str) -> Result<Cow<'a, str>, KeyError> {
    let too_long = |bytes| KeyError::ValueTooLong {
        attribute: attribute.to_owned(),
        bytes,
    };
    if value.len() > MAX_VALUE_BYTES {
        return Err(too_long(value.len()));
    }
    let value = normalise(value);
    if value.len() > MAX_VALUE_BYTES {
        return Err(too_long(value.len()));
    }
    Ok(value)
}

// === impl Key ===

impl Key {
    /// The key of a request under a policy that matches it.
    ///
    /// Looks at the policy's key attributes alone; [`check_attributes`] bounds the request as a whole.
    pub fn of(
        policy: &Policy,
        attributes: &Attributes,
        hash: &SubjectHash,
    ) -> Result<Self, KeyError> {
        let mut text = policy.id();
        let mut first = None;
        let mut bytes = 0;
        for attribute in &policy.key {
            let value = attributes.get(attribute).ok_or_else(|| KeyError::Missing {
                policy: policy.name.clone(),
                attribute: attribute.clone(),
            })?;
            let value = bounded(attribute, value)?;
            bytes += value.len();
            text.push(':');
            let start = text.len();
            if policy.sensitive.contains(attribute) || !shown::may_be_shown(&value) {
                text.push_str(hash::MARK);
                text.push_str(&hash.digits(attribute, &value));
                first.get_or_insert_with(|| partition_of(&text[start..]));
            } else {
                escape(&value, &mut text);
                first.get_or_insert_with(|| partition_of(&value));
            }
        }
        if bytes > MAX_SUBJECT_BYTES {
            return Err(KeyError::SubjectTooLong {
                policy: policy.name.clone(),
                bytes,
            });
        }
        let partition = first.unwrap_or_else(|| {
            text.push(':');
            partition_of(&policy.name)
        });
        Ok(Self {
            text: text.into(),
            partition,
        })
    }

    /// Reads what [`Key::of`] writes, and nothing else: it may come from a peer or from the store.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, subject) = text.split_once(':')?;
        let (name, version) = id.split_once('@')?;
        let known: u32 = version.parse().ok().filter(|&v| v > 0)?;
        if !limits::is_policy_name(name) || known.to_string() != version {
            return None;
        }
        let values = read_all(subject)?;
        // So many values that may be shown are never longer than a subject may be.
        if values.len() > limits::MAX_KEY_ATTRIBUTES {
            return None;
        }
        let partition = match values.first() {
            Some(Value::Shown(value)) => partition_of(value),
            Some(Value::Hashed(_)) => partition_of(subject.split(':').next()?),
            None => partition_of(name),
        };
        Some(Self {
            text: text.into(),
            partition,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn partition(&self) -> Partition {
        self.partition
    }

    /// `name@version`, as [`Policy::id`] gives it.
    pub fn policy_id(&self) -> &str {
        self.halves().0
    }

    /// The values of the policy's key attributes, in its order, as they can be shown: `#` and 22 characters for one that
    /// is hashed.
    pub fn subject(&self) -> Vec<String> {
        let values = read_all(self.halves().1)
            .expect("a key is escaped when it is made and read when parsed");
        let show = |value| match value {
            Value::Shown(value) => value,
            Value::Hashed(digits) => format!("#{digits}"),
        };
        values.into_iter().map(show).collect()
    }

    fn halves(&self) -> (&str, &str) {
        self.text
            .split_once(':')
            .expect("a colon ends the policy's id in every key")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn partition_of(text: &str) -> Partition {
    Partition(xxh3_64(text.as_bytes()).to_le_bytes()[0])
}

// === escapes ===

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._~-".contains(&byte)
}

fn escape(value: &str, to: &mut String) {
    if value.is_empty() {
        to.push_str(EMPTY);
    }
    for byte in value.bytes() {
        if is_plain(byte) {
            to.push(char::from(byte));
        } else {
            write!(to, "%{byte:02X}").expect("writing to a String can't fail");
        }
    }
}

/// A value as a key's text has it.
enum Value<'t> {
    Shown(String),
    /// The 22 characters.
    Hashed(&'t str),
}

fn read_all(subject: &str) -> Option<Vec<Value<'_>>> {
    if subject.is_empty() {
        return Some(Vec::new());
    }
    let read = |text| match hash::hashed(text) {
        Some(digits) => Some(Value::Hashed(digits)),
        None => unescape(text).map(Value::Shown),
    };
    subject.split(':').map(read).collect()
}

/// `None` for all that [`Key::of`] doesn't write so.
fn unescape(text: &str) -> Option<String> {
    if text == EMPTY {
        return Some(String::new());
    }
    if text.is_empty() {
        return None;
    }
    let mut value = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        value.push(match byte {
            b'%' => {
                let escaped = upper_hex(bytes.next()?)? << 4 | upper_hex(bytes.next()?)?;
                Some(escaped).filter(|&b| !is_plain(b))?
            }
            plain => Some(plain).filter(|&b| is_plain(b))?,
        });
    }
    let value = String::from_utf8(value).ok()?;
    (shown::may_be_shown(&value) && normalise(&value) == value).then_some(value)
}

fn upper_hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
