//! Mistakes that the model makes when it is told to.

use super::Bounds;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Planted {
    /// Rows are added up, not merged by maximum.
    RowsAddedUp,
    /// The newest row counts, not the largest.
    NewestNotLargestRow,
    /// A row counts for its region, whatever its life.
    RowByRegion,
    /// A row counts in the window that its receiver is in.
    CrossWindow,
    /// Used rights are given.
    GivenUnguarded,
    /// A row is sent before it is on record.
    SentBeforeRecorded,
    /// A later life has a base in the window that it begins in.
    OpenWindowNotCovered,
    /// It has a base in the next window, of which its forerunner may have given.
    NextWindowNotCovered,
    /// It takes another host's clock for exact.
    SkewNotCovered,
    /// A store that is rolled back goes on as it was at the start.
    RollbackWithoutLife,
    /// Rights are given of windows after the next one.
    GivenFarAhead,
    /// A window that was over, and is forgotten, is opened again by a clock that is set back.
    OpenedAgain,
}

impl Planted {
    pub const ALL: [Self; 12] = [
        Self::RowsAddedUp,
        Self::NewestNotLargestRow,
        Self::RowByRegion,
        Self::CrossWindow,
        Self::GivenUnguarded,
        Self::SentBeforeRecorded,
        Self::OpenWindowNotCovered,
        Self::NextWindowNotCovered,
        Self::SkewNotCovered,
        Self::RollbackWithoutLife,
        Self::GivenFarAhead,
        Self::OpenedAgain,
    ];

    /// A space in which it shows. Without it, nothing does.
    pub fn shows_in(self) -> Bounds {
        let small = Bounds::SMALL;
        let lossy = Bounds {
            gifts: 1,
            losses: 1,
            ..small
        };
        match self {
            Self::RowsAddedUp
            | Self::CrossWindow
            | Self::GivenUnguarded
            | Self::SentBeforeRecorded => small,
            Self::NewestNotLargestRow => Bounds { base: 2, ..small },
            Self::RowByRegion
            | Self::OpenWindowNotCovered
            | Self::NextWindowNotCovered
            | Self::RollbackWithoutLife
            | Self::GivenFarAhead => lossy,
            Self::SkewNotCovered => Bounds { from: 2, ..lossy },
            Self::OpenedAgain => Bounds { steps: 1, ..small },
        }
    }
}
