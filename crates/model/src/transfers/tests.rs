use super::*;
use crate::tests::{each_mistake_is_caught, holds_in};

#[test]
fn each_mistake_shows() {
    each_mistake_is_caught::<TransfersModel>();
}

#[test]
fn small_spaces_hold() {
    for bounds in TransfersModel::small() {
        holds_in::<TransfersModel>(bounds);
    }
}
