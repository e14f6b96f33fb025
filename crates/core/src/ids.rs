//! The nouns that every part shares: regions, lives, epochs, store time.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A region's name: 1 to 32 characters of `a-z`, `0-9` and `-`, checked where configuration is read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Region(Arc<str>);

/// One uninterrupted history of a region's store, named by 48 random bits.
///
/// It is part of every store key, every row and every message, so that nothing of a lost history is ever
/// mistaken for the present one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Life(u64);

/// Counts the interruptions of a store's clock within one life: a step, or a time that nobody vouched for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u32);

/// A moment on one store's own clock, in milliseconds since the Unix epoch. Two regions' moments are never compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreMs(pub u64);

/// Whose usage a slot counts: a region in one of its lives.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Actor {
    pub region: Region,
    pub life: Life,
}

/// What each partition of a store holds, and every call must agree with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    pub life: Life,
    pub epoch: Epoch,
    pub revision: u64,
}

// === impl Region ===

impl Region {
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Life ===

impl Life {
    const BITS: u32 = 48;
    const ALPHABET: &'static [u8; 64] =
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    /// The life named by the low 48 bits of `random`.
    pub const fn from_random(random: u64) -> Self {
        Self(random & ((1 << Self::BITS) - 1))
    }

    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Reads what `Display` writes: eight characters of the URL-safe base 64 alphabet.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 8 {
            return None;
        }
        text.bytes()
            .try_fold(0u64, |bits, byte| {
                let digit = Self::ALPHABET.iter().position(|&a| a == byte)?;
                Some(bits << 6 | digit as u64)
            })
            .map(Self)
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for shift in (0..Self::BITS).step_by(6).rev() {
            let digit = Self::ALPHABET[(self.0 >> shift & 63) as usize];
            write!(f, "{}", char::from(digit))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Epoch ===

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

// === impl StoreMs ===

impl StoreMs {
    pub const MAX: Self = Self(u64::MAX);

    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    pub const fn minus(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Milliseconds from `earlier` to here; 0 where the clock went back in between.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for StoreMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_survives_being_written_and_read() {
        for bits in [0, 1, 63, 64, 0xdead_beef_cafe, u64::MAX] {
            let life = Life::from_random(bits);
            assert_eq!(Life::parse(&life.to_string()), Some(life));
        }
        assert_eq!(Life::parse("too long a text"), None);
        assert_eq!(Life::parse("!!!!!!!!"), None);
    }
}
