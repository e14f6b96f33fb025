//! Members of a pool: a bucket that several share, dealt by weighted max-min when it is short.
//!
//! Each member that has asked lately has a credit, a part of the tokens that are there, kept for it. What flows in is
//! dealt to the members by weight, to nobody beyond its part of the capacity; what nobody has room for is free, for
//! whoever asks first. A member spends its credit, and then what is free. So a member that asks for less than its part
//! gets all of it, the others share the rest by weight, and one that is alone has everything.
//!
//! The bucket's own rules stand: a credit only refuses, it never admits what the bucket doesn't hold.

use crate::ids::StoreMs;

/// Members that have credits at a time; one more has what is free.
pub const MEMBERS_MAX: usize = 64;
/// A member that hasn't asked for so long is away: what was kept for it is dealt to the others.
pub const MEMBER_IDLE_MS: u64 = 10_000;
/// What is left over after so many rounds of dealing is free.
const ROUNDS: usize = 3;

/// Who asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// As it goes into the store, at most 256 bytes.
    pub name: String,
    /// At least 1.
    pub weight: u32,
}

/// The members of one pool in one region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    /// The tokens that were there after the last request, in micro-units.
    pub tokens: u64,
    /// In the order in which they came.
    pub members: Vec<MemberShare>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberShare {
    pub member: Member,
    /// Micro-units kept for it.
    pub credit: u64,
    /// When it last asked.
    pub seen: StoreMs,
}

/// `weight / weights` of `total`, rounded down, in products below 2^53.
const fn part(total: u64, weight: u64, weights: u64) -> u64 {
    total / weights * weight + total % weights * weight / weights
}

impl Pool {
    /// The pool as `member` finds it, in a bucket of capacity `cap` that has `tokens` now.
    #[must_use]
    pub fn settle(mut self, member: &Member, tokens: u64, cap: u64, now: StoreMs) -> Self {
        let is_new = self.members.is_empty() && self.tokens == 0;
        let before = if is_new { tokens } else { self.tokens };
        self.members
            .retain(|m| m.seen.plus(MEMBER_IDLE_MS) > now || m.member.name == member.name);
        let found = self
            .members
            .iter()
            .position(|m| m.member.name == member.name);
        if let Some(found) = found {
            let found = &mut self.members[found];
            found.member.weight = member.weight;
            found.seen = found.seen.max(now);
        } else if self.members.len() < MEMBERS_MAX {
            self.members.push(MemberShare {
                member: member.clone(),
                credit: 0,
                seen: now,
            });
        }
        let weights: u64 = self
            .members
            .iter()
            .map(|m| u64::from(m.member.weight))
            .sum();
        let caps: Vec<u64> = self
            .members
            .iter()
            .map(|m| part(cap, u64::from(m.member.weight), weights))
            .collect();
        for (m, cap) in self.members.iter_mut().zip(&caps) {
            m.credit = m.credit.min(*cap);
        }
        self.deal(tokens.saturating_sub(before), &caps);
        self.cut(tokens);
        self.tokens = tokens;
        self
    }

    /// Deals what came in, by weight, to those who have room.
    fn deal(&mut self, came: u64, caps: &[u64]) {
        let mut left = came;
        for _ in 0..ROUNDS {
            let has_room = |(m, cap): &(&mut MemberShare, &u64)| m.credit < **cap;
            let open = self.members.iter_mut().zip(caps).filter(has_room);
            let weights: u64 = open.map(|(m, _)| u64::from(m.member.weight)).sum();
            if weights == 0 || left == 0 {
                return;
            }
            let round = left;
            for (m, cap) in self.members.iter_mut().zip(caps).filter(has_room) {
                let dealt = part(round, u64::from(m.member.weight), weights);
                let dealt = dealt.min(*cap - m.credit);
                m.credit += dealt;
                left -= dealt;
            }
        }
    }

    /// Credits are never more than the tokens that are there: the last to come gives way first.
    fn cut(&mut self, tokens: u64) {
        let mut left = tokens;
        for m in &mut self.members {
            m.credit = m.credit.min(left);
            left -= m.credit;
        }
    }

    /// What `member` can have: its credit and what is free.
    pub fn available(&self, member: &Member) -> u64 {
        let kept: u64 = self.members.iter().map(|m| m.credit).sum();
        let own = self.members.iter().find(|m| m.member.name == member.name);
        self.tokens - kept + own.map_or(0, |m| m.credit)
    }

    /// Takes `cost` for `member`. The caller has seen that it fits.
    pub fn charge(&mut self, member: &Member, cost: u64) {
        self.tokens -= cost;
        if let Some(m) = self
            .members
            .iter_mut()
            .find(|m| m.member.name == member.name)
        {
            m.credit -= m.credit.min(cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{MICRO, PPB, Rate, Shares};

    const RATE: Rate = Rate {
        limit: 100,
        per_ms: 1_000,
        burst: 100,
    };

    fn member(name: &str, weight: u32) -> Member {
        Member {
            name: name.into(),
            weight,
        }
    }

    /// What each member is given in the last half of so many seconds, asking `demand` times a second.
    fn run(members: &[(u32, u64)], seconds: u64) -> Vec<u64> {
        let members: Vec<(Member, u64)> = members
            .iter()
            .enumerate()
            .map(|(i, (weight, demand))| (member(&format!("m{i}"), *weight), *demand))
            .collect();
        let shares = Shares::constant(PPB);
        let (mut pool, mut tokens, mut at) = (Pool::default(), 100 * MICRO, StoreMs(0));
        let mut given = vec![0; members.len()];
        for ms in 0..seconds * 1_000 {
            for (i, (member, demand)) in members.iter().enumerate() {
                if (ms * demand) % 1_000 >= *demand {
                    continue;
                }
                let now = StoreMs(ms);
                tokens = shares.settle(&RATE, tokens, at, now, 0);
                at = now;
                pool = pool.settle(member, tokens, 100 * MICRO, now);
                if MICRO <= pool.available(member) {
                    pool.charge(member, MICRO);
                    tokens -= MICRO;
                    given[i] += u64::from(ms >= seconds * 500);
                }
            }
        }
        given
    }

    #[test]
    fn a_member_that_is_alone_has_everything() {
        assert!(run(&[(1, 500)], 20)[0] >= 990);
    }

    #[test]
    fn what_is_short_is_dealt_by_weight() {
        let given = run(&[(1, 500), (3, 500)], 20);
        assert!(
            given[0].abs_diff(250) < 15 && given[1].abs_diff(750) < 15,
            "{given:?}"
        );
    }

    #[test]
    fn who_asks_for_less_than_its_part_gets_it_and_the_others_share_the_rest() {
        let given = run(&[(1, 10), (1, 500), (1, 500)], 20);
        assert!(given[0].abs_diff(100) < 5, "{given:?}");
        assert!(
            given[1].abs_diff(450) < 30 && given[2].abs_diff(450) < 30,
            "{given:?}"
        );
    }

    #[test]
    fn credits_are_never_more_than_the_tokens() {
        let (a, b) = (member("a", 1), member("b", 1));
        let pool = Pool::default()
            .settle(&a, 100 * MICRO, 100 * MICRO, StoreMs(0))
            .settle(&b, 100 * MICRO, 100 * MICRO, StoreMs(1));
        // The share was lowered: half of the tokens are gone.
        let pool = pool.settle(&a, 10 * MICRO, 10 * MICRO, StoreMs(2));
        let kept: u64 = pool.members.iter().map(|m| m.credit).sum();
        assert!(kept <= pool.tokens);
        assert!(pool.available(&a) <= 10 * MICRO);
    }
}
