//! Slots in a caller's hand: a token that names them, and their release.

use crate::charge::wants_a_look;
use crate::engine::Engine;
use crate::plan::is_slots;
use crate::prepared::Prepared;
use crate::request::CheckError;
use apportion_core::{Key, Life, Partition, PolicySet};
use apportion_store::{Charge, EndHolds, Op, Reply, Store, StoreError};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Raised with every change of the encoding.
const FORM: u8 = 1;
/// Longer than any token that this writes.
const TOKEN_MAX_BYTES: usize = 128 << 10;

/// The slots of one request.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reservation {
    form: u8,
    life: Life,
    id: u64,
    keys: Vec<String>,
}

// === impl Reservation ===

impl Reservation {
    pub(crate) fn new<'a>(life: Life, id: u64, keys: impl IntoIterator<Item = &'a Key>) -> Self {
        Self {
            form: FORM,
            life,
            id,
            keys: keys
                .into_iter()
                .map(|key| key.as_str().to_owned())
                .collect(),
        }
    }

    pub(crate) fn to_token(&self) -> String {
        let bytes = postcard::to_stdvec(self).expect("it has no types that postcard can't write");
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The reservation with its keys, if it is one: a token comes from outside.
    fn parse(token: &str) -> Option<(Self, Vec<Key>)> {
        if token.len() > TOKEN_MAX_BYTES {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (reservation, rest) = postcard::take_from_bytes::<Self>(&bytes).ok()?;
        if reservation.form != FORM || !rest.is_empty() || reservation.keys.is_empty() {
            return None;
        }
        let keys = reservation.keys.iter().map(|key| Key::parse(key));
        let keys = keys.collect::<Option<Vec<Key>>>()?;
        Some((reservation, keys))
    }
}

impl<S: Store> Engine<S> {
    /// Ends the slots of a reservation, if they are still taken. Whether any was.
    ///
    /// May be called again: what is ended stays ended.
    ///
    /// # Errors
    /// Where the token isn't one, or the store is out of reach.
    pub async fn release(&self, token: &str) -> Result<bool, CheckError> {
        let Some((reservation, keys)) = Reservation::parse(token) else {
            let message = "not a reservation of this service".to_owned();
            return Err(CheckError::invalid("reservation", message));
        };
        let mut released = false;
        let mut may_ask_again = true;
        loop {
            let policies = self.policies();
            let prepared = self.prepared(&policies).map_err(|e| self.unavailable(&e))?;
            if prepared.regime().state.life != reservation.life {
                // The slots went with the store's history.
                return Ok(released);
            }
            let ops = end_slots(&prepared, &policies, reservation.id, &keys);
            if ops.is_empty() {
                return Ok(released);
            }
            let replies = self.store.call(ops).await;
            keys.iter().for_each(|key| self.shared.denied.changed(key));
            let mut failed: Option<StoreError> = None;
            for reply in replies {
                match reply {
                    Ok(Reply::Ended(found)) => released |= found.contains(&true),
                    Ok(_) => failed = Some(StoreError::Unknown("a reply of another kind".into())),
                    Err(error) => {
                        self.note_look_again(&error);
                        failed = Some(error);
                    }
                }
            }
            let Some(error) = failed else {
                return Ok(released);
            };
            let again = may_ask_again
                && wants_a_look(&error)
                && self.regime_changes(prepared.regime()).await;
            if !again {
                return Err(self.unavailable(&error));
            }
            may_ask_again = false;
        }
    }
}

/// Of a policy that is gone nobody counts the slots.
fn end_slots(prepared: &Prepared, policies: &PolicySet, id: u64, keys: &[Key]) -> Vec<Op> {
    let mut by_partition: BTreeMap<Partition, Vec<Charge>> = BTreeMap::new();
    for key in keys {
        let mut all = policies.policies.iter().enumerate();
        let of_key = all.find(|(_, p)| is_slots(p) && p.id() == key.policy_id());
        let Some((index, policy)) = of_key else {
            continue;
        };
        let limits = policy
            .limits_of_key(key, &policies.subject_hash)
            .unwrap_or(policy.limits);
        by_partition
            .entry(key.partition())
            .or_default()
            .push(Charge {
                key: key.clone(),
                rule: prepared.rule(index, limits),
                cost: 0,
                // What was admitted was used: nothing is refunded.
                units: 0,
                reserve_ppm: 0,
                denied: 0,
                usage_ms: None,
                shadow: policy.shadow,
                newcomers_max: None,
                member: None,
            });
    }
    let ends = by_partition.into_iter().map(|(partition, charges)| {
        Op::EndHolds(EndHolds {
            fence: prepared.fence(),
            partition,
            id,
            laid_at: prepared.fence().span.from,
            release: true,
            charges,
        })
    });
    ends.collect()
}
