use super::*;
use crate::tests::{each_mistake_is_caught, holds_in};

#[test]
fn each_mistake_shows() {
    each_mistake_is_caught::<LoansModel>();
}

#[test]
fn small_spaces_hold() {
    for bounds in LoansModel::small() {
        holds_in::<LoansModel>(bounds);
    }
}
