//! Values that must not be seen are hashed, under a key of the deployment, before they become part of a key's text.
//!
//! Whoever has the key can try values out; whoever doesn't can't tell one value from another. Every region needs the
//! same key: under two of them one subject would be two.

use super::shown::may_be_shown;
use std::borrow::Cow;
use std::fmt;

/// What hashed values begin with in a key's text. The escape writes two hexadecimal digits after a percent sign, or nothing.
pub(super) const MARK: &str = "%.";
/// 128 bits in base64url.
const DIGITS: usize = 22;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Hashes values of attributes. The default has a key that everybody knows: it keeps values out of sight, and doesn't
/// keep them from being tried out.
#[derive(Clone, PartialEq, Eq)]
pub struct SubjectHash {
    key: [u8; 32],
    fingerprint: u64,
}

// === impl SubjectHash ===

impl SubjectHash {
    /// Under a key that is derived from `secret`, which may be any bytes.
    pub fn new(secret: &[u8]) -> Self {
        Self::keyed(blake3::derive_key(
            "apportion 2026-01 key of hashed subjects",
            secret,
        ))
    }

    fn keyed(key: [u8; 32]) -> Self {
        let hash = blake3::keyed_hash(&key, b"fingerprint");
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        Self {
            key,
            fingerprint: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        }
    }

    /// What two nodes compare to see whether they have the same key.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// A value, in composed form, as it may be shown: itself, or `#` and 22 characters.
    pub(crate) fn shown<'v>(&self, attribute: &str, value: &'v str) -> Cow<'v, str> {
        if may_be_shown(value) {
            Cow::Borrowed(value)
        } else {
            Cow::Owned(format!("#{}", self.digits(attribute, value)))
        }
    }

    /// The 22 characters that stand for `value`. Equal values of different attributes don't show as equal. Those of one
    /// attribute do, whatever the policy: the policies of one subject share a partition.
    pub(super) fn digits(&self, attribute: &str, value: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in ["value", attribute, value] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let mut bits = [0; 16];
        hasher.finalize_xof().fill(&mut bits);
        base64url(u128::from_be_bytes(bits))
    }
}

impl Default for SubjectHash {
    fn default() -> Self {
        Self::keyed(*blake3::hash(b"apportion: no key").as_bytes())
    }
}

impl fmt::Debug for SubjectHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectHash").finish_non_exhaustive()
    }
}

// === the text of a hash ===

/// RFC 4648, section 5, without padding.
fn base64url(bits: u128) -> String {
    let six = |shift: usize| usize::try_from(bits >> shift & 63).expect("six bits");
    let last = usize::try_from((bits & 3) << 4).expect("six bits");
    let indices = (0..DIGITS - 1).map(|i| six(122 - 6 * i)).chain([last]);
    indices.map(|i| char::from(ALPHABET[i])).collect()
}

/// The 22 characters of a hashed value in a key's text; `None` for all that isn't written so.
pub(super) fn hashed(text: &str) -> Option<&str> {
    let digits = text.strip_prefix(MARK)?;
    let (last, others) = digits.as_bytes().split_last()?;
    let written = digits.len() == DIGITS
        && others.iter().all(|b| ALPHABET.contains(b))
        // Two bits are left for the last.
        && b"AQgw".contains(last);
    written.then_some(digits)
}
