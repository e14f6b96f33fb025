//! Allotments: a region's side of a key's loans and transfers, as pure functions from one to the next.
//!
//! A store keeps an allotment as opaque bytes and swaps it by compare-and-set; whoever loses the race reads again
//! and computes again. Nothing here is ever done twice in Lua.

mod loans;
mod transfers;

pub use loans::{Credit, Debtor, Grant, LoanAsk, LoanGrant, Loans, Statement};
pub use transfers::{Given, Received, Row, RowSeen, Transfers};

use crate::ids::StoreMs;
use crate::planted::{self, Bug};
use serde::{Deserialize, Serialize};

/// What a key's trade is made of: loans for rates, transfers for windows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Allotment {
    Loans(Loans),
    Transfers(Transfers),
}

/// The first byte of every stored allotment, so that a later form is never misread.
const FORM: u8 = 1;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an allotment of form {0:?} can't be read by this version")]
pub struct UnknownForm(Option<u8>);

impl Allotment {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![FORM];
        bytes.extend(postcard::to_stdvec(self).expect("an allotment is plain data"));
        bytes
    }

    /// # Errors
    /// Where the bytes were written by something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, UnknownForm> {
        match bytes.split_first() {
            Some((&FORM, rest)) => postcard::from_bytes(rest).map_err(|_| UnknownForm(Some(FORM))),
            other => Err(UnknownForm(other.map(|(form, _)| *form))),
        }
    }
}

/// The terms of every loan, the same in all regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// How long a loan lasts on the borrower's clock, from its asking.
    pub term_ms: u64,
}

impl Timing {
    /// How long a lender goes without what it granted, on its own clock: the term, and as long as what was admitted on
    /// it goes on counting, by the slowest clock, and a margin.
    pub fn reclaim_ms(&self, counts_ms: u64) -> u64 {
        if planted::is_on(Bug::ReclaimWithoutMargin) {
            return self.term_ms + counts_ms;
        }
        let short = planted::is_on(Bug::SlidingReclaimShort);
        let counts_ms = if short { 0 } else { counts_ms };
        crate::fence::with_drift(self.term_ms + counts_ms) + crate::fence::MARGIN_MS
    }
}

/// Until when a region counts all that it may lend as lent: a life or an epoch that can't know what its forerunner lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentAll {
    pub until: StoreMs,
}

#[cfg(test)]
mod tests;
