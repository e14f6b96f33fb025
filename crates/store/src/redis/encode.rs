//! Operations as Redis commands, and the names of keys.

use super::pack::{self, Writer, exact};
use super::script::{Attachment, Clock, Fenced, Plain};
use super::text;
use crate::StoreError;
use crate::op::*;
use ::redis::{Cmd, Pipeline, cmd};
use apportion_core::fence::{Fence, Missing};
use apportion_core::meter::Rule;
use apportion_core::{Key, Life, Partition, StoreMs};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Most rows that one page of the feed or of the traded meters has.
const PAGE_MAX: usize = 65_536;

/// The names of a region's keys. What stands in braces keeps a partition's keys together.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
}

/// What is needed to say an operation to Redis.
#[derive(Clone, Copy)]
pub(super) struct Encoder<'a> {
    pub(super) names: &'a Names,
    pub(super) clock: Clock,
    pub(super) attachment: Option<&'a Attachment>,
}

// === impl Names ===

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.into(),
        }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn record(&self, partition: Partition) -> String {
        format!("{}{{{:02x}}}r", self.prefix, partition.0)
    }

    pub(super) fn state(&self) -> String {
        format!("{}{{s}}s", self.prefix)
    }

    fn lease(&self) -> String {
        format!("{}{{s}}l", self.prefix)
    }

    pub(super) fn marks(&self, life: Life) -> String {
        format!("{}{{s}}{life}m", self.prefix)
    }

    pub(super) fn fake_clock(&self) -> String {
        format!("{}{{s}}!clock", self.prefix)
    }

    /// A key of a partition: `kind` is nothing for a meter, `T` for what is kept beside it, `U` for usage, and so on. No
    /// policy begins with any of these.
    pub(super) fn of(&self, partition: Partition, life: Life, kind: &str, rest: &str) -> String {
        format!("{}{{{:02x}}}{life}{kind}{rest}", self.prefix, partition.0)
    }

    /// What isn't of a subject is in a partition of its own name.
    fn of_name(&self, name: &str, life: Life, kind: &str, rest: &str) -> String {
        let [partition, ..] = xxh3_64(name.as_bytes()).to_le_bytes();
        self.of(Partition(partition), life, kind, rest)
    }
}

/// What follows the kind in the names of a meter and of what is kept beside it.
pub(super) fn suffix(id: &MeterId) -> String {
    match id.label {
        Some(label) => format!("{}#{label}", id.key.as_str()),
        None => id.key.as_str().into(),
    }
}

/// The fence of an operation that has one, and its partition.
pub(super) fn fence_of(op: &Op) -> Option<(&Fence, Partition)> {
    match op {
        Op::Decide(decide) => Some((&decide.fence, decide.partition)),
        Op::EndHolds(end) => Some((&end.fence, end.partition)),
        Op::Swap(swap) => Some((&swap.fence, swap.id.key.partition())),
        Op::Read {
            fence, partition, ..
        }
        | Op::Traded {
            fence, partition, ..
        }
        | Op::Feed {
            fence, partition, ..
        }
        | Op::Ack {
            fence, partition, ..
        }
        | Op::Merge {
            fence, partition, ..
        }
        | Op::Hear {
            fence, partition, ..
        }
        | Op::Usage {
            fence, partition, ..
        } => Some((fence, *partition)),
        Op::Look
        | Op::PutState { .. }
        | Op::Attach { .. }
        | Op::Adopt { .. }
        | Op::Sweep { .. }
        | Op::Lease { .. }
        | Op::Mark { .. }
        | Op::Marks { .. } => None,
    }
}

// === impl Encoder ===

impl Encoder<'_> {
    /// Adds the commands of `op`, which isn't an attach; nothing where it can't be sent.
    pub(super) fn add(&self, op: &Op, to: &mut Pipeline) -> Result<(), StoreError> {
        match op {
            Op::Look => self.look(to),
            Op::Attach { .. } => return Err(StoreError::NotSent("an attach goes alone".into())),
            Op::PutState { expect, value } => {
                let state = self.names.state();
                let mut cmd = self.plain(Plain::PutState, &state);
                cmd.arg(*expect).arg(value.as_slice());
                to.add_command(cmd);
            }
            Op::Adopt {
                state_version,
                record,
            } => {
                let state = self.names.state();
                let mut cmd = self.plain(Plain::Adopt, &state);
                cmd.arg(*state_version)
                    .arg(self.names.prefix())
                    .arg(text::record(record));
                to.add_command(cmd);
            }
            Op::Lease { holder, ttl_ms } => {
                let mut cmd = self.plain(Plain::Lease, &self.names.lease());
                cmd.arg(*holder).arg(*ttl_ms);
                to.add_command(cmd);
            }
            Op::Mark {
                life,
                actor,
                through,
            } => {
                let mut cmd = self.plain(Plain::Mark, &self.names.marks(*life));
                cmd.arg(text::actor(actor)).arg(through.0);
                to.add_command(cmd);
            }
            Op::Marks { life } => {
                to.cmd("HGETALL").arg(self.names.marks(*life));
            }
            Op::Decide(decide) => {
                let Batch { cmd, mut sent } = self.decides(&[decide]);
                if let Some(cmd) = cmd {
                    to.add_command(cmd);
                }
                return sent.pop().unwrap_or(Ok(()));
            }
            Op::EndHolds(end) => {
                let cmd = self.end_holds(end)?;
                to.add_command(cmd);
            }
            Op::Swap(swap) => {
                let cmd = self.swap(swap)?;
                to.add_command(cmd);
            }
            Op::Read {
                fence,
                partition,
                ids,
            } => {
                let mut cmd = self.rows("snapshots", fence, *partition)?;
                for id in ids {
                    cmd.arg(suffix(id));
                }
                to.add_command(cmd);
            }
            Op::Traded {
                fence,
                partition,
                limit,
            } => {
                let mut cmd = self.rows("traded", fence, *partition)?;
                cmd.arg((*limit).min(PAGE_MAX));
                to.add_command(cmd);
            }
            Op::Feed {
                fence,
                partition,
                reader,
                limit,
            } => {
                let mut cmd = self.rows("feed", fence, *partition)?;
                cmd.arg(reader).arg((*limit).min(PAGE_MAX));
                to.add_command(cmd);
            }
            Op::Sweep {
                fence,
                readers,
                traded_max,
                feed_max,
            } => {
                for partition in (0..=u8::MAX).map(Partition) {
                    let mut cmd = self.rows("sweep", fence, partition)?;
                    cmd.arg((*traded_max).min(PAGE_MAX))
                        .arg((*feed_max).min(PAGE_MAX))
                        .arg(readers);
                    to.add_command(cmd);
                }
            }
            Op::Ack {
                fence,
                partition,
                reader,
                seq,
            } => {
                let mut cmd = self.rows("ack", fence, *partition)?;
                cmd.arg(reader).arg(exact("a change's number", *seq)?);
                to.add_command(cmd);
            }
            Op::Merge {
                fence,
                partition,
                slots,
            } => {
                let cmd = self.merge(fence, *partition, slots)?;
                to.add_command(cmd);
            }
            Op::Hear {
                fence,
                partition,
                heard,
            } => {
                let cmd = self.hear(fence, *partition, heard)?;
                to.add_command(cmd);
            }
            Op::Usage {
                fence,
                partition,
                key,
                starts,
            } => {
                let mut cmd = self.rows("usage", fence, *partition)?;
                cmd.arg(key.as_str());
                for start in starts {
                    cmd.arg(start.0);
                }
                to.add_command(cmd);
            }
        }
        Ok(())
    }

    /// In one transaction, so that all of it is of one server.
    fn look(&self, to: &mut Pipeline) {
        to.cmd("MULTI");
        match self.clock {
            Clock::Redis => to.cmd("TIME"),
            Clock::Fake => to.cmd("GET").arg(self.names.fake_clock()),
        };
        to.cmd("INFO").arg("server").arg("replication");
        to.cmd("HMGET").arg(self.names.state()).arg("v").arg("d");
        to.cmd("EXEC");
    }

    /// Reads the fingerprint and loads the scripts in one transaction, so that they are where it was read.
    pub(super) fn attach(&self, life: Life, nonce: u64) -> Pipeline {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("MULTI");
        pipeline.cmd("INFO").arg("server").arg("replication");
        for script in Fenced::ALL {
            let text = script.text(self.clock, life, nonce);
            pipeline.cmd("SCRIPT").arg("LOAD").arg(text);
        }
        pipeline.cmd("EXEC");
        pipeline
    }

    fn plain(&self, script: Plain, key: &str) -> Cmd {
        let mut cmd = cmd("EVAL");
        cmd.arg(script.text(self.clock)).arg(1).arg(key);
        cmd
    }

    /// A script, and what its one argument begins with.
    fn fenced(
        &self,
        script: Fenced,
        fence: &Fence,
        partition: Partition,
    ) -> Result<(Cmd, Writer), StoreError> {
        let attachment = self
            .attachment
            .filter(|attachment| attachment.life == fence.record.life)
            .ok_or(StoreError::LookAgain)?;
        let mut cmd = cmd("EVALSHA");
        cmd.arg(attachment.digest(script))
            .arg(1)
            .arg(self.names.record(partition));
        let mut head = Writer::default();
        head.bytes(self.names.prefix().as_bytes())
            .bytes(text::record(&fence.record).as_bytes())
            .count(fence.span.from.0)
            .count(fence.span.until.0)
            .count(fence.record.epoch.0.into())
            .count(exact("an epoch's beginning", fence.epoch_began.0)?);
        match fence.missing {
            Missing::Full => head.signed(-1),
            Missing::EmptyAt(moment) => head.count(exact("a life's beginning", moment.0)?),
        };
        head.count(fence.closed_before.0)
            .count(fence.replicated.into());
        Ok((cmd, head))
    }

    fn rows(
        &self,
        operation: &str,
        fence: &Fence,
        partition: Partition,
    ) -> Result<Cmd, StoreError> {
        let (mut cmd, mut head) = self.fenced(Fenced::Rows, fence, partition)?;
        head.bytes(pp(partition).as_bytes());
        cmd.arg(head.into_bytes()).arg(operation);
        Ok(cmd)
    }

    /// One command for decisions that share a fence; in it are those that can be sent.
    pub(super) fn decides(&self, decides: &[&Decide]) -> Batch {
        let Some(first) = decides.first() else {
            return Batch::default();
        };
        debug_assert!(decides.iter().all(|d| d.fence == first.fence));
        let (mut cmd, mut to) = match self.fenced(Fenced::Decide, &first.fence, first.partition) {
            Ok(begun) => begun,
            Err(error) => {
                return Batch {
                    cmd: None,
                    sent: vec![Err(error); decides.len()],
                };
            }
        };
        let mut rules = Rules::default();
        let mut requests = Writer::default();
        let mut number = 0;
        let mut sent = Vec::with_capacity(decides.len());
        for decide in decides {
            let request = self.request(decide, &mut rules);
            sent.push(request.map(|request| {
                requests.counted(&request);
                number += 1;
            }));
        }
        to.count(rules.known.len() as u64).append(&rules.written);
        to.count(number).append(&requests);
        cmd.arg(to.into_bytes());
        Batch {
            cmd: (number > 0).then_some(cmd),
            sent,
        }
    }

    fn request(&self, decide: &Decide, rules: &mut Rules) -> Result<Writer, StoreError> {
        let life = decide.fence.record.life;
        let (mode, ttl_ms) = match decide.mode {
            Mode::Peek => (0, 0),
            Mode::Charge => (1, 0),
            Mode::Hold { ttl_ms } => (2, exact("a hold's term", ttl_ms)?),
            Mode::Note => (3, 0),
        };
        let mut to = Writer::default();
        to.bytes(pp(decide.partition).as_bytes())
            .count(exact("a request's id", decide.id)?)
            .count(mode)
            .count(ttl_ms);
        match &decide.remember {
            Some(Remember {
                id,
                content,
                others,
            }) if decide.mode == Mode::Charge => {
                to.count(1)
                    .bytes(self.names.of_name(id, life, "I", id).as_bytes())
                    .bytes(&content.to_le_bytes())
                    .bytes(others);
            }
            _ => drop(to.count(0)),
        }
        to.count(decide.charges.len() as u64);
        for charge in &decide.charges {
            let flag = |on: bool, bit: u64| if on { bit } else { 0 };
            let flags = flag(charge.shadow, 1)
                | flag(charge.newcomers_max.is_some(), 2)
                | flag(charge.member.is_some(), 4);
            to.bytes(charge.key.as_str().as_bytes())
                .count(rules.number_of(&charge.rule)?)
                .count(exact("a cost", charge.cost)?)
                .count(exact("a cost", charge.units)?)
                .count(charge.reserve_ppm.into())
                .count(exact("what was denied", charge.denied)?)
                .count(usage_period(charge)?)
                .count(flags);
            if let Some(most) = charge.newcomers_max {
                let policy = charge.key.policy_id();
                let name = policy.split_once('@').map_or(policy, |(name, _)| name);
                let place = self.names.of_name(name, life, "N", policy);
                to.bytes(place.as_bytes()).count(most.into());
            }
            if let Some(member) = &charge.member {
                to.bytes(member.name.as_bytes()).count(member.weight.into());
            }
        }
        Ok(to)
    }

    fn end_holds(&self, end: &EndHolds) -> Result<Cmd, StoreError> {
        let (mut cmd, mut to) = self.fenced(Fenced::EndHolds, &end.fence, end.partition)?;
        let mut rules = Rules::default();
        let mut charges = Writer::default();
        for charge in &end.charges {
            charges
                .bytes(charge.key.as_str().as_bytes())
                .count(rules.number_of(&charge.rule)?)
                .count(exact("a cost", charge.units)?)
                .count(usage_period(charge)?);
        }
        to.bytes(pp(end.partition).as_bytes())
            .count(rules.known.len() as u64)
            .append(&rules.written)
            .count(exact("a hold's id", end.id)?)
            .count(exact("a hold's beginning", end.laid_at.0)?)
            .count(end.release.into())
            .count(end.charges.len() as u64)
            .append(&charges);
        cmd.arg(to.into_bytes());
        Ok(cmd)
    }

    fn swap(&self, swap: &Swap) -> Result<Cmd, StoreError> {
        let partition = swap.id.key.partition();
        let (mut cmd, mut to) = self.fenced(Fenced::Swap, &swap.fence, partition)?;
        to.bytes(pp(partition).as_bytes()).count(1);
        to.rule(&swap.rule)?;
        let key = swap.id.key.as_str();
        to.bytes(suffix(&swap.id).as_bytes());
        match swap.id.label {
            // In the order of labels, and those of a key before what begins with it.
            Some(label) => to
                .bytes(format!("{key}#{label:020}").as_bytes())
                .count(label),
            None => to.bytes(key.as_bytes()).signed(-1),
        };
        to.count(exact("a version", swap.expect)?)
            .count(swap.keep_until.0);
        cmd.arg(to.into_bytes())
            .arg(pack::terms(&swap.terms)?)
            .arg(swap.allotment.as_slice());
        Ok(cmd)
    }

    fn merge(
        &self,
        fence: &Fence,
        partition: Partition,
        slots: &[UsageSlot],
    ) -> Result<Cmd, StoreError> {
        let mut cmd = self.rows("merge", fence, partition)?;
        for UsageSlot {
            key,
            period,
            keep_until,
            slot,
        } in slots
        {
            let counts = slot.counts;
            cmd.arg(key.as_str())
                .arg(period.0)
                .arg(keep_until.0)
                .arg(text::actor(&slot.actor));
            for n in [counts.admitted, counts.refunded, counts.refused] {
                cmd.arg(exact("a usage count", n)?);
            }
        }
        Ok(cmd)
    }
}

impl Encoder<'_> {
    fn hear(
        &self,
        fence: &Fence,
        partition: Partition,
        heard: &[Heard],
    ) -> Result<Cmd, StoreError> {
        let (mut cmd, mut to) = self.fenced(Fenced::Hear, fence, partition)?;
        let mut rules = Rules::default();
        let mut each = Writer::default();
        for Heard {
            id,
            rule,
            actor,
            told,
        } in heard
        {
            each.bytes(suffix(id).as_bytes());
            match id.label {
                Some(label) => each.count(exact("a label", label)?),
                None => each.signed(-1),
            };
            each.count(rules.number_of(rule)?)
                .bytes(text::actor(actor).as_bytes())
                .count(exact("a tally's beginning", told.began.0)?)
                .count(exact("a tally", told.units)?)
                .count(exact("a tally", told.recent)?);
        }
        to.bytes(pp(partition).as_bytes())
            .count(rules.known.len() as u64)
            .append(&rules.written)
            .count(heard.len() as u64)
            .append(&each);
        cmd.arg(to.into_bytes());
        Ok(cmd)
    }
}

/// Decisions in one command.
#[derive(Default)]
pub(super) struct Batch {
    /// `None` where none can be sent.
    pub(super) cmd: Option<Cmd>,
    /// For each decision whether it is in the command, in its order.
    pub(super) sent: Vec<Result<(), StoreError>>,
}

/// The distinct rules of a call, each said once.
#[derive(Default)]
struct Rules {
    known: Vec<Arc<Rule>>,
    written: Writer,
}

impl Rules {
    /// The rule's number, from 1 on.
    fn number_of(&mut self, rule: &Arc<Rule>) -> Result<u64, StoreError> {
        let same = |known: &Arc<Rule>| Arc::ptr_eq(known, rule) || known == rule;
        let index = match self.known.iter().rposition(same) {
            Some(index) => index,
            None => {
                let mut written = Writer::default();
                written.rule(rule)?;
                self.written.append(&written);
                self.known.push(Arc::clone(rule));
                self.known.len() - 1
            }
        };
        Ok(index as u64 + 1)
    }
}

/// A partition as it stands in names.
fn pp(partition: Partition) -> String {
    format!("{:02x}", partition.0)
}

/// The usage period's length; 0 where none is counted.
fn usage_period(charge: &Charge) -> Result<u64, StoreError> {
    exact("a usage period", charge.usage_ms.unwrap_or(0))
}

/// The name of a usage hash, for saying where something unreadable stands.
pub(super) fn usage_name(key: &Key, period: StoreMs) -> String {
    format!("{}@{}", key.as_str(), period.0)
}
