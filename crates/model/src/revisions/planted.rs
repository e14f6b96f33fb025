//! Mistakes that the model makes when it is told to.

use super::Bounds;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Planted {
    /// A raise counts at once.
    RaisedWithoutWaiting,
    /// Who loses is judged against the revision before only: two revisions add up.
    AgainstTheLastOnly,
    /// A region that has skipped a revision takes what it knows for all there is.
    SkippedUnnoticed,
    /// A region confirms a revision, and goes by the older base until it is in force.
    ConfirmedBeforeLowered,
    /// One of those who lose is enough.
    OneConfirmationSuffices,
    /// A confirmation counts for its region, whatever its life.
    ConfirmationWithoutLife,
    /// A later life goes by its file at once.
    LaterLifeIsSure,
    /// A region confirms a revision once it is in force there: two that lose wait for each other.
    ConfirmedInForceOnly,
}

impl Planted {
    pub const ALL: [Self; 8] = [
        Self::RaisedWithoutWaiting,
        Self::AgainstTheLastOnly,
        Self::SkippedUnnoticed,
        Self::ConfirmedBeforeLowered,
        Self::OneConfirmationSuffices,
        Self::ConfirmationWithoutLife,
        Self::LaterLifeIsSure,
        Self::ConfirmedInForceOnly,
    ];

    /// A space in which it shows. Without it, nothing does.
    pub fn shows_in(self) -> Bounds {
        let small = Bounds::SMALL;
        match self {
            Self::RaisedWithoutWaiting
            | Self::AgainstTheLastOnly
            | Self::ConfirmedBeforeLowered
            | Self::ConfirmedInForceOnly => small,
            Self::OneConfirmationSuffices => Bounds::THREE,
            // What the first had goes to the second, and then to the third.
            Self::SkippedUnnoticed => Bounds {
                only: Some([[2, 0, 0], [0, 2, 0], [0, 0, 2]]),
                ..Bounds::THREE
            },
            Self::ConfirmationWithoutLife | Self::LaterLifeIsSure => Bounds {
                losses: 1,
                only: Some([[1, 0, 0], [1, 0, 0], [0, 1, 0]]),
                ..small
            },
        }
    }
}
