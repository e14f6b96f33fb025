//! Mistakes that the model makes when it is told to.

use super::Bounds;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Planted {
    /// One peer's answer is enough.
    OneAnswerSuffices,
    /// Peers may mean different present lives of each other.
    AnswersNeedNotAgree,
    /// Peers don't say which lives they have heard of.
    LivesNotPassedOn,
    /// A life admits before anybody has it on record.
    AdmitsUnrecorded,
    /// An empty store is new.
    EmptyIsNew,
    /// A store that starts again with its data is new if it was.
    RestartIsNoLoss,
    /// A region that is asking doesn't answer.
    SilentWhileAsking,
}

impl Planted {
    pub const ALL: [Self; 7] = [
        Self::OneAnswerSuffices,
        Self::AnswersNeedNotAgree,
        Self::LivesNotPassedOn,
        Self::AdmitsUnrecorded,
        Self::EmptyIsNew,
        Self::RestartIsNoLoss,
        Self::SilentWhileAsking,
    ];

    /// A space in which it shows. Without it, nothing does.
    pub fn shows_in(self) -> Bounds {
        let regions = match self {
            Self::OneAnswerSuffices | Self::AnswersNeedNotAgree => 3,
            _ => 2,
        };
        Bounds {
            regions,
            ..Bounds::SMALL
        }
    }
}
