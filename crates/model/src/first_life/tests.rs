use super::*;
use crate::tests::{each_mistake_is_caught, holds_in};

#[test]
fn each_mistake_shows() {
    each_mistake_is_caught::<FirstLifeModel>();
}

#[test]
fn small_spaces_hold() {
    for bounds in FirstLifeModel::small() {
        holds_in::<FirstLifeModel>(bounds);
    }
}
