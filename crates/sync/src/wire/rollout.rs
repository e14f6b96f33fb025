//! What a message says of revisions, to and from its wire form.

use super::{LIVES_MAX, REGIONS_MAX, WireError, each, few, life, moment, number, once, region};
use apportion_core::policy::limits;
use apportion_core::rollout::{REVISIONS_MAX, Told, ToldRetired, ToldRevision};
use apportion_proto::sync::v1 as proto;
use std::collections::BTreeSet;

pub(super) fn revisions_to_wire(told: &Told) -> Vec<proto::Revision> {
    let revision = |revision: &ToldRevision| proto::Revision {
        number: revision.number,
        digest: revision.digest,
        since_ms: revision.kept.map(|(since, _)| since.0),
        held_ms: revision.kept.map_or(0, |(_, held_ms)| held_ms),
        loses: revision.loses,
    };
    told.revisions.iter().map(revision).collect()
}

pub(super) fn retired_to_wire(told: &Told) -> Vec<proto::Retired> {
    let retired = |retired: &ToldRetired| proto::Retired {
        region: retired.region.to_string(),
        number: retired.number,
        lives: retired.lives.iter().map(|life| life.to_bits()).collect(),
    };
    told.retired.iter().map(retired).collect()
}

pub(super) fn from_wire(
    revisions: Vec<proto::Revision>,
    original: bool,
    retired: Vec<proto::Retired>,
    behind: Vec<u64>,
) -> Result<Told, WireError> {
    let revisions = few("revisions", revisions, REVISIONS_MAX)?;
    let revisions = each(revisions, |revision| {
        let held_ms = number("revisions.held_ms", revision.held_ms)?;
        let since = revision
            .since_ms
            .map(|ms| moment("revisions.since_ms", ms))
            .transpose()?;
        Ok(ToldRevision {
            number: number("revisions.number", revision.number)?,
            digest: revision.digest,
            loses: revision.loses,
            kept: since.map(|since| (since, held_ms)),
        })
    })?;
    let in_order = revisions
        .windows(2)
        .all(|pair| pair[0].number < pair[1].number);
    if !in_order {
        return Err(WireError::Malformed {
            field: "revisions.number",
            reason: "not in order",
        });
    }
    let mut seen = BTreeSet::new();
    let retired = few("retired", retired, REGIONS_MAX)?;
    let retired = each(retired, |entry| {
        let name = region("retired.region", &entry.region)?;
        once("retired.region", seen.insert(name.clone()))?;
        let lives = few("retired.lives", entry.lives, LIVES_MAX)?;
        let lives = lives.into_iter().map(|bits| life("retired.lives", bits));
        Ok(ToldRetired {
            region: name,
            number: number("retired.number", entry.number)?,
            lives: lives.collect::<Result<_, _>>()?,
        })
    })?;
    let behind = few("behind", behind, limits::MAX_POLICIES)?;
    Ok(Told {
        revisions,
        behind: behind.into_iter().collect(),
        original,
        retired,
    })
}
