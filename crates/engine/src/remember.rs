//! How a request is known again by the name that its caller gave it.
//!
//! The store keeps the answer of the partition that was charged last, and beside it what is encoded here: under which
//! id slots were taken, and what the other partitions had said. So a retry is answered in full, from one partition.

use crate::charge::Said;
use crate::request::CheckRequest;
use apportion_core::StoreMs;
use apportion_core::key::normalise;
use apportion_core::meter::Reading;
use apportion_core::schedule::Flow;
use apportion_store::{Answer, Decided, StoreError};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Raised with every change of the encoding: what an older node has kept is another request's then.
const FORM: u8 = 1;

/// What is kept beside an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// That of holds and slots.
    pub(crate) id: u64,
    /// By group, without the one that was charged last. `None`: it failed, and refused nothing.
    others: Vec<Option<KeptDecided>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptDecided {
    now: StoreMs,
    admitted: bool,
    answers: Vec<KeptAnswer>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptAnswer {
    fits: bool,
    crowded: bool,
    #[serde(with = "ReadingDef")]
    reading: Reading,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Reading")]
enum ReadingDef {
    Bucket {
        spendable: u64,
        held: u64,
        #[serde(with = "FlowDef")]
        flow: Flow,
    },
    Window {
        label: u64,
        used: u64,
        rights: u64,
    },
    Units {
        available: u64,
        of: u64,
        retry_ms: Option<u64>,
        reset_ms: u64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Flow")]
struct FlowDef {
    cap: u64,
    whole: u64,
    rest: u64,
    per: u64,
}

/// A digest of all that is asked, and of the policies that answer: a retry that others would answer isn't one.
pub(crate) fn content_of<'a>(
    request: &CheckRequest,
    policy_ids: impl Iterator<Item = &'a str>,
) -> u128 {
    let mut digest = Digest(Xxh3::new());
    digest.number(u64::from(FORM));
    digest.number(request.cost);
    digest.number(u64::from(request.priority.is_some()));
    digest.text(request.priority.as_deref().unwrap_or_default());
    digest.number(request.attributes.len() as u64);
    for (name, value) in &request.attributes {
        digest.text(name);
        digest.text(&normalise(value));
    }
    policy_ids.for_each(|id| digest.text(id));
    digest.0.digest128()
}

struct Digest(Xxh3);

impl Digest {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }
}

// === impl Kept ===

impl Kept {
    pub(crate) fn new(id: u64, others: &[Said]) -> Self {
        Self {
            id,
            others: others.iter().map(KeptDecided::of).collect(),
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("it has no types that postcard can't write")
    }

    /// `None` for what another node has written in another form.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }

    pub(crate) fn into_said(self) -> Vec<Said> {
        let said = self.others.into_iter().map(|kept| match kept {
            Some(kept) => Said::decided(kept.into()),
            None => Said::Failed(StoreError::NotSent("it failed before".into())),
        });
        said.collect()
    }
}

impl KeptDecided {
    fn of(said: &Said) -> Option<Self> {
        let Said::Decided { decided, .. } = said else {
            return None;
        };
        let answers = decided.answers.iter().map(|a| KeptAnswer {
            fits: a.fits,
            crowded: a.crowded,
            reading: a.reading,
        });
        Some(Self {
            now: decided.now,
            admitted: decided.admitted,
            answers: answers.collect(),
        })
    }
}

impl From<KeptDecided> for Decided {
    fn from(kept: KeptDecided) -> Self {
        let answers = kept.answers.into_iter().map(|a| Answer {
            fits: a.fits,
            crowded: a.crowded,
            reading: a.reading,
            overdrawn: 0,
        });
        Self {
            now: kept.now,
            admitted: kept.admitted,
            answers: answers.collect(),
            replayed: None,
        }
    }
}
