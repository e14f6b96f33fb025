//! Operations as Redis commands, and the names of keys.

use super::script::{Attachment, Clock, Fenced, Plain};
use super::text;
use crate::StoreError;
use crate::op::*;
use ::redis::{Cmd, Pipeline, cmd};
use apportion_core::fence::{Fence, Missing};
use apportion_core::{Key, Life, Partition, Record, StoreMs};

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

    /// A key of a partition: `kind` is `k` for a meter, `t` for what is kept beside it, `u` for usage, `f` for the feed.
    pub(super) fn of(&self, partition: Partition, life: Life, kind: char, rest: &str) -> String {
        format!("{}{{{:02x}}}{life}{kind}{rest}", self.prefix, partition.0)
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
        | Op::Usage {
            fence, partition, ..
        } => Some((fence, *partition)),
        Op::Look
        | Op::PutState { .. }
        | Op::Attach { .. }
        | Op::Adopt { .. }
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
                let cmd = self.decide(decide)?;
                to.add_command(cmd);
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
            Op::Ack {
                fence,
                partition,
                reader,
                seq,
            } => {
                let mut cmd = self.rows("ack", fence, *partition)?;
                cmd.arg(reader).arg(text::exact("a change's number", *seq)?);
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

    fn fenced(
        &self,
        script: Fenced,
        fence: &Fence,
        partition: Partition,
    ) -> Result<Cmd, StoreError> {
        let Record { life, epoch, .. } = fence.record;
        let attachment = self
            .attachment
            .filter(|attachment| attachment.life == life)
            .ok_or(StoreError::LookAgain)?;
        let mut cmd = cmd("EVALSHA");
        cmd.arg(attachment.digest(script))
            .arg(1)
            .arg(self.names.record(partition))
            .arg(text::record(&fence.record))
            .arg(fence.span.from.0)
            .arg(fence.span.until.0)
            .arg(epoch.0)
            .arg(text::exact("an epoch's beginning", fence.epoch_began.0)?);
        match fence.missing {
            Missing::Full => cmd.arg(-1),
            Missing::EmptyAt(moment) => cmd.arg(text::exact("a life's beginning", moment.0)?),
        };
        cmd.arg(fence.closed_before.0);
        Ok(cmd)
    }

    fn rows(
        &self,
        operation: &str,
        fence: &Fence,
        partition: Partition,
    ) -> Result<Cmd, StoreError> {
        let mut cmd = self.fenced(Fenced::Rows, fence, partition)?;
        cmd.arg(operation);
        Ok(cmd)
    }

    fn decide(&self, decide: &Decide) -> Result<Cmd, StoreError> {
        let mut cmd = self.fenced(Fenced::Decide, &decide.fence, decide.partition)?;
        match decide.mode {
            Mode::Peek => cmd.arg("p").arg(0).arg(0),
            Mode::Charge => cmd.arg("c").arg(0).arg(0),
            Mode::Hold { id, ttl_ms } => cmd
                .arg("h")
                .arg(text::exact("a hold's id", id)?)
                .arg(text::exact("a hold's term", ttl_ms)?),
        };
        for charge in &decide.charges {
            cmd.arg(charge.key.as_str())
                .arg(text::rule(&charge.rule)?)
                .arg(text::exact("a cost", charge.cost)?)
                .arg(text::exact("a cost", charge.units)?)
                .arg(usage_period(charge)?)
                .arg(u8::from(charge.shadow));
        }
        Ok(cmd)
    }

    fn end_holds(&self, end: &EndHolds) -> Result<Cmd, StoreError> {
        let mut cmd = self.fenced(Fenced::EndHolds, &end.fence, end.partition)?;
        cmd.arg(text::exact("a hold's id", end.id)?)
            .arg(text::exact("a hold's beginning", end.laid_at.0)?)
            .arg(u8::from(end.release));
        for charge in &end.charges {
            cmd.arg(charge.key.as_str())
                .arg(text::rule(&charge.rule)?)
                .arg(text::exact("a cost", charge.units)?)
                .arg(usage_period(charge)?);
        }
        Ok(cmd)
    }

    fn swap(&self, swap: &Swap) -> Result<Cmd, StoreError> {
        let mut cmd = self.fenced(Fenced::Swap, &swap.fence, swap.id.key.partition())?;
        cmd.arg(swap.id.key.as_str());
        match swap.id.label {
            Some(label) => cmd.arg(label),
            None => cmd.arg(""),
        };
        cmd.arg(text::exact("a version", swap.expect)?)
            .arg(text::rule(&swap.rule)?)
            .arg(text::terms(&swap.terms)?)
            .arg(swap.allotment.as_slice())
            .arg(swap.keep_until.0);
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
                cmd.arg(text::exact("a usage count", n)?);
            }
        }
        Ok(cmd)
    }
}

/// The usage period's length; 0 where none is counted.
fn usage_period(charge: &Charge) -> Result<u64, StoreError> {
    text::exact("a usage period", charge.usage_ms.unwrap_or(0))
}

/// The name of a usage hash, for saying where something unreadable stands.
pub(super) fn usage_name(key: &Key, period: StoreMs) -> String {
    format!("{}@{}", key.as_str(), period.0)
}
