//! Mistakes that the model makes when it is told to: each stands for a rule that the protocol can't do without.

use super::Bounds;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Planted {
    /// The grant is sent before the swap that lowers the lender's share.
    RaiseBeforeLower,
    /// The lender charges itself the newest grant, not the largest.
    NewestNotLargest,
    /// What is borrowed is lent on.
    Relending,
    /// A statement cuts grants that are newer than what its borrower had seen.
    StaleReturn,
    /// A statement is made before the borrower has lowered its share.
    StatedBeforeLowered,
    /// A new life takes up what the old one was granted.
    OldLifeAccepted,
    /// A new epoch takes up what the old one was granted.
    OldEpochAccepted,
    /// The lender waits for the term only.
    NoMargin,
    /// A new life or epoch doesn't know that it may have lent.
    NoLentAll,
    /// It waits for the term only.
    LentAllTooShort,
    /// A new epoch goes on using what the old one borrowed.
    EpochKeepsCredits,
    /// A step of the clock opens no epoch.
    StepWithoutEpoch,
    /// A clock that nobody vouches for brings loans back.
    ReclaimOutsideSpan,
    /// A swap doesn't compare.
    BlindSwap,
    /// A store that is rolled back goes on as it was then.
    RollbackWithoutLife,
    /// A stamp is forgotten as soon as its term is over.
    SeenForgotten,
    /// A borrower takes up an older grant after a newer one.
    OlderTakenUp,
    /// The lender never takes anything back by itself.
    NeverReclaimed,
}

impl Planted {
    pub const ALL: [Self; 18] = [
        Self::RaiseBeforeLower,
        Self::NewestNotLargest,
        Self::Relending,
        Self::StaleReturn,
        Self::StatedBeforeLowered,
        Self::OldLifeAccepted,
        Self::OldEpochAccepted,
        Self::NoMargin,
        Self::NoLentAll,
        Self::LentAllTooShort,
        Self::EpochKeepsCredits,
        Self::StepWithoutEpoch,
        Self::ReclaimOutsideSpan,
        Self::BlindSwap,
        Self::RollbackWithoutLife,
        Self::SeenForgotten,
        Self::OlderTakenUp,
        Self::NeverReclaimed,
    ];

    /// A space in which it shows. Without it, nothing does.
    pub fn shows_in(self) -> Bounds {
        let calm = Bounds::CALM;
        let one = Bounds { asks: 1, ..calm };
        match self {
            Self::RaiseBeforeLower | Self::BlindSwap => Bounds { slow: true, ..one },
            Self::NewestNotLargest
            | Self::Relending
            | Self::StaleReturn
            | Self::StatedBeforeLowered
            | Self::OlderTakenUp
            | Self::NeverReclaimed => calm,
            Self::NoMargin | Self::SeenForgotten => Bounds {
                wobble: true,
                ..one
            },
            Self::NoLentAll | Self::RollbackWithoutLife => Bounds { losses: 1, ..one },
            // Each region owes the other: a share of its own is lent already.
            Self::OldLifeAccepted => Bounds {
                losses: 1,
                ticks: 0,
                ..calm
            },
            Self::LentAllTooShort => Bounds {
                losses: 1,
                wobble: true,
                ..one
            },
            Self::OldEpochAccepted
            | Self::EpochKeepsCredits
            | Self::StepWithoutEpoch
            | Self::ReclaimOutsideSpan => Bounds { steps: 1, ..one },
        }
    }
}
