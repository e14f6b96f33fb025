//! Bugs that can be switched on, one at a time and for one thread, so that tests show that the simulator finds them.
//!
//! Only with the feature `planted`, which no product is built with: without it [`is_on`] is the constant `false`.

/// Each breaks one rule, where that rule stands in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A grant or a row is sent though the swap that it rests on wasn't confirmed.
    GrantBeforeSwap,
    /// A swap doesn't ask whether the allotment is still the one that was read.
    SwapWithoutCompare,
    /// A swap doesn't ask what is used and held.
    SwapWithoutGuard,
    /// A lender charges itself the newest grant, not the largest.
    NewestGrant,
    /// What is borrowed is lent on.
    Relent,
    /// Idle time is refilled at the share that is in force now.
    RefillAtPresentShare,
    /// A lender keeps tokens beyond its lowered capacity.
    TokensKept,
    /// A bucket refills over what is held.
    HoldsNotKept,
    /// A loan's term begins when the grant arrives, not when it was asked for.
    TermFromReceipt,
    /// A lender has its share back when the term is over, without a margin.
    ReclaimWithoutMargin,
    /// A lender doesn't wait for what a sliding window goes on counting.
    SlidingReclaimShort,
    /// Outside the span the schedule goes on.
    ReclaimOutsideSpan,
    /// What is kept of a traded key ends before its loans do.
    ShortMemory,
    /// A statement cuts grants that are newer than it says.
    StaleReturn,
    /// A grant that is no newer than what was seen is taken up.
    SeenForgotten,
    /// A grant for an older epoch is taken up.
    OlderEpochGrant,
    /// What an older epoch had borrowed is used on.
    BorrowedAcrossEpochs,
    /// After a step of the clock nothing counts as lent.
    LentForgotten,
    /// After a loss all counts as lent for too short a time.
    LentAllShort,
    /// A step of the clock isn't looked for.
    UnseenStep,
    /// Calls of an older epoch are let in.
    EpochNotFenced,
    /// Another store with older data goes on with the life of the one before.
    RollbackGoesOn,
    /// A rate key that isn't there is full, also after a loss.
    MissingIsFull,
    /// A life that is asking has its base.
    AskingUsesBase,
    /// The window after a loss has its base.
    NextWindowNotCovered,
    /// Rows are kept by region, not by life.
    RowsByRegion,
    /// A row to an older life is taken in.
    OlderLifeRow,
    /// Rows are added up, not merged by maximum.
    RowsAddedUp,
    /// Rights of a window go over into the next.
    CrossWindow,
    /// A window whose end was seen to pass is opened again.
    SealedWindowReopened,
    /// Whoever gives rights of a key whose plan it doesn't know goes by the largest.
    LargestPlanGiven,
    /// Usage slots are added up, not merged by maximum.
    UsageAddedUp,
    /// Usage of lives that are over isn't passed on.
    DeadSlotsKept,
    /// A slot is taken for read when it is sent, not when it is confirmed.
    AckedUnread,
    /// The newest revision alone counts, whoever goes by an older one.
    NewestRevisionCounts,
    /// What a region loses by a revision is another's as soon as it has confirmed it, though it may be lent, or counted.
    LostIsFreeAtOnce,
    /// An open window is dealt anew.
    OpenWindowDealtAnew,
    /// A later life has its base though it can't know what the one before confirmed.
    UnsureHasBase,
}

impl Bug {
    pub const ALL: [Self; 38] = [
        Self::GrantBeforeSwap,
        Self::SwapWithoutCompare,
        Self::SwapWithoutGuard,
        Self::NewestGrant,
        Self::Relent,
        Self::RefillAtPresentShare,
        Self::TokensKept,
        Self::HoldsNotKept,
        Self::TermFromReceipt,
        Self::ReclaimWithoutMargin,
        Self::SlidingReclaimShort,
        Self::ReclaimOutsideSpan,
        Self::ShortMemory,
        Self::StaleReturn,
        Self::SeenForgotten,
        Self::OlderEpochGrant,
        Self::BorrowedAcrossEpochs,
        Self::LentForgotten,
        Self::LentAllShort,
        Self::UnseenStep,
        Self::EpochNotFenced,
        Self::RollbackGoesOn,
        Self::MissingIsFull,
        Self::AskingUsesBase,
        Self::NextWindowNotCovered,
        Self::RowsByRegion,
        Self::OlderLifeRow,
        Self::RowsAddedUp,
        Self::CrossWindow,
        Self::SealedWindowReopened,
        Self::LargestPlanGiven,
        Self::UsageAddedUp,
        Self::DeadSlotsKept,
        Self::AckedUnread,
        Self::NewestRevisionCounts,
        Self::LostIsFreeAtOnce,
        Self::OpenWindowDealtAnew,
        Self::UnsureHasBase,
    ];
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Switches `bug` on for this thread, and whichever was on before off.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted")]
pub fn is_on(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_on(_bug: Bug) -> bool {
    false
}
