//! Models of the protocols between regions, checked to the end of small spaces.

pub mod check;
pub mod first_life;
pub mod loans;
pub mod transfers;
