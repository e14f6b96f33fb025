//! Reading some keys, planning for each, and swapping in what was planned: the part that every job shares.

use crate::message::Trade;
use crate::plan::Plan;
use apportion_core::fence::Fence;
use apportion_core::planted::{self, Bug};
use apportion_core::{Partition, Region, StoreMs};
use apportion_store::{MeterId, Op, Reply, Snapshot, StoreError};
use std::collections::BTreeMap;

/// A swap that lost the race is planned again so many times.
const TRIES_MAX: u8 = 3;

#[derive(Debug, Default)]
pub(crate) struct Work {
    todo: Vec<MeterId>,
    tries: u8,
    awaiting: Awaiting,
    /// What may be told, since it rests on what the store now holds.
    pub(crate) tell: BTreeMap<Region, Trade>,
}

#[derive(Debug, Default)]
enum Awaiting {
    #[default]
    Nothing,
    Read(Vec<Vec<MeterId>>),
    Swaps(Vec<(MeterId, Plan)>),
}

/// Where the work stands after replies came in.
pub(crate) enum Progress {
    /// More is to be asked of the store.
    Ask(Vec<Op>),
    Done,
    /// The store isn't the one that was planned for, or is out of reach.
    Broken(StoreError),
}

impl Work {
    pub(crate) fn new(mut ids: Vec<MeterId>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        Self {
            todo: ids,
            ..Self::default()
        }
    }

    /// The next reading; `None` where nothing is left to do.
    pub(crate) fn read(&mut self, fence: &Fence) -> Option<Vec<Op>> {
        if self.todo.is_empty() || self.tries >= TRIES_MAX {
            return None;
        }
        self.tries += 1;
        let mut groups: BTreeMap<Partition, Vec<MeterId>> = BTreeMap::new();
        for id in self.todo.drain(..) {
            groups.entry(id.key.partition()).or_default().push(id);
        }
        let ops = groups
            .iter()
            .map(|(partition, ids)| Op::Read {
                fence: *fence,
                partition: *partition,
                ids: ids.clone(),
            })
            .collect();
        self.awaiting = Awaiting::Read(groups.into_values().collect());
        Some(ops)
    }

    /// Goes on with the store's replies. `plan` is called for each key that was read.
    pub(crate) fn replied(
        &mut self,
        fence: &Fence,
        replies: Vec<Result<Reply, StoreError>>,
        mut plan: impl FnMut(&MeterId, &Snapshot, StoreMs) -> Plan,
    ) -> Progress {
        match std::mem::take(&mut self.awaiting) {
            Awaiting::Nothing => Progress::Done,
            Awaiting::Read(groups) => {
                let mut swaps = Vec::new();
                for (ids, reply) in groups.into_iter().zip(replies) {
                    let (now, snapshots) = match reply {
                        Ok(Reply::Snapshots { now, snapshots }) => (now, snapshots),
                        Ok(_) => {
                            return Progress::Broken(StoreError::Rejected("not a snapshot".into()));
                        }
                        Err(error) => return Progress::Broken(error),
                    };
                    for (id, snapshot) in ids.into_iter().zip(snapshots) {
                        let plan = plan(&id, &snapshot, now);
                        if planted::is_on(Bug::GrantBeforeSwap) {
                            self.may_tell(plan.tell.clone());
                        }
                        if plan.swap.is_some() {
                            swaps.push((id, plan))
                        } else {
                            self.may_tell(plan.tell)
                        }
                    }
                }
                if swaps.is_empty() {
                    return Progress::Done;
                }
                let ops = swaps
                    .iter()
                    .filter_map(|(_, plan)| plan.swap.clone().map(Op::Swap))
                    .collect();
                self.awaiting = Awaiting::Swaps(swaps);
                Progress::Ask(ops)
            }
            Awaiting::Swaps(swaps) => {
                for ((id, plan), reply) in swaps.into_iter().zip(replies) {
                    match reply {
                        Ok(_) => self.may_tell(plan.tell),
                        Err(StoreError::Conflict) => self.todo.push(id),
                        Err(
                            StoreError::Guard | StoreError::OutOfSpan | StoreError::Rejected(_),
                        ) => {}
                        Err(error) => return Progress::Broken(error),
                    }
                }
                self.read(fence).map_or(Progress::Done, Progress::Ask)
            }
        }
    }

    fn may_tell(&mut self, tell: BTreeMap<Region, Trade>) {
        for (region, trade) in tell {
            self.tell.entry(region).or_default().extend(trade);
        }
    }
}
