//! The rules whose absence breaks the sum, one test each.

use super::*;
use crate::fence::{MARGIN_MS, SPAN_MS};
use crate::ids::{Actor, Epoch, Life, Region};
use crate::schedule::PPB;

const TERM: u64 = 10_000;
const TIMING: Timing = Timing { term_ms: TERM };
const BASE: u64 = PPB / 3;

fn actor(region: &str, life: u64) -> Actor {
    Actor {
        region: Region::new(region),
        life: Life::from_random(life),
    }
}

fn ask(by: &Actor, asked_at: u64, want_ppb: u64) -> LoanAsk {
    LoanAsk {
        by: by.clone(),
        epoch: Epoch(1),
        asked_at: StoreMs(asked_at),
        want_ppb,
    }
}

fn lender() -> (Actor, Loans) {
    (
        actor("lender", 1),
        Loans {
            epoch: Epoch(1),
            ..Loans::default()
        },
    )
}

fn borrower() -> (Actor, Loans) {
    (
        actor("borrower", 2),
        Loans {
            epoch: Epoch(1),
            ..Loans::default()
        },
    )
}

/// Lends, and says what was granted.
fn lend(loans: Loans, ask: &LoanAsk, amount: u64, now: u64) -> (Loans, LoanGrant) {
    let (us, _) = lender();
    loans
        .lend(ask, amount, BASE, TIMING.reclaim_ms(0), &us, StoreMs(now))
        .expect("the ask is new and fits")
}

#[test]
fn the_lender_goes_without_for_longer_than_the_borrower_uses_it() {
    let (b, credits) = borrower();
    let (loans, grant) = lend(lender().1, &ask(&b, 100, BASE), BASE, 500_000);
    let credits = credits
        .take_up(&grant, TIMING, &b, StoreMs(150))
        .expect("it is fresh");
    assert_eq!(credits.borrowed_at(StoreMs(100 + TERM - 1)), BASE);
    assert_eq!(credits.borrowed_at(StoreMs(100 + TERM)), 0);
    assert_eq!(
        loans.lent_at(StoreMs(500_000 + TERM + MARGIN_MS)),
        BASE,
        "the drift is still to come"
    );
    assert_eq!(loans.lent_at(StoreMs(500_000 + TIMING.reclaim_ms(0))), 0);
    assert!(TIMING.reclaim_ms(0) > TERM + MARGIN_MS);
}

#[test]
fn the_lender_charges_itself_the_largest_grant_and_the_borrower_uses_the_newest() {
    let (b, credits) = borrower();
    let (loans, large) = lend(lender().1, &ask(&b, 100, BASE), BASE, 500_000);
    let (loans, small) = lend(loans, &ask(&b, 200, BASE), BASE / 4, 500_100);
    assert_eq!(loans.lent_at(StoreMs(500_101)), BASE);
    let credits = credits
        .take_up(&small, TIMING, &b, StoreMs(300))
        .expect("it is fresh");
    assert_eq!(credits.borrowed_at(StoreMs(301)), BASE / 4);
    assert_eq!(
        credits.take_up(&large, TIMING, &b, StoreMs(302)),
        None,
        "an older grant came late"
    );
}

#[test]
fn many_grants_are_merged_into_no_less_of_a_charge() {
    let (b, _) = borrower();
    let mut loans = lender().1;
    for i in 0..20u64 {
        let amount = if i == 3 { BASE } else { BASE / 10 };
        loans = lend(loans, &ask(&b, 100 + i, BASE), amount, 500_000 + i).0;
    }
    assert_eq!(loans.lent_at(StoreMs(500_100)), BASE);
    assert_eq!(loans.lent_at(StoreMs(500_019 + TIMING.reclaim_ms(0))), 0);
}

#[test]
fn an_ask_that_is_not_newer_is_ignored() {
    let (b, _) = borrower();
    let (us, loans) = lender();
    let (loans, _) = lend(loans, &ask(&b, 100, BASE), BASE / 2, 500_000);
    for stamp in [99, 100] {
        let again = loans.clone().lend(
            &ask(&b, stamp, BASE),
            0,
            BASE,
            TIMING.reclaim_ms(0),
            &us,
            StoreMs(500_001),
        );
        assert_eq!(again, None);
    }
}

#[test]
fn no_more_is_lent_in_all_than_may_be() {
    let (us, loans) = lender();
    let (loans, _) = lend(
        loans,
        &ask(&actor("x", 7), 100, BASE),
        BASE / 2 + 1,
        500_000,
    );
    let second = ask(&actor("y", 8), 100, BASE);
    let lend = |amount| {
        loans.clone().lend(
            &second,
            amount,
            BASE,
            TIMING.reclaim_ms(0),
            &us,
            StoreMs(500_001),
        )
    };
    assert_eq!(lend(BASE / 2 + 1), None);
    assert!(lend(BASE / 2).is_some());
}

#[test]
fn two_lives_of_a_borrower_are_charged_apart() {
    let (loans, _) = lend(
        lender().1,
        &ask(&actor("borrower", 2), 100, BASE),
        BASE / 3,
        500_000,
    );
    let (loans, _) = lend(
        loans,
        &ask(&actor("borrower", 3), 5, BASE),
        BASE / 3,
        500_001,
    );
    assert_eq!(loans.lent_at(StoreMs(500_002)), 2 * (BASE / 3));
}

#[test]
fn a_grant_of_another_life_or_epoch_is_ignored() {
    let (b, credits) = borrower();
    let (_, grant) = lend(lender().1, &ask(&b, 100, BASE), BASE, 500_000);
    let mine = |grant: &LoanGrant| credits.clone().take_up(grant, TIMING, &b, StoreMs(150));
    assert!(mine(&grant).is_some());
    assert_eq!(
        mine(&LoanGrant {
            to: actor("borrower", 9),
            ..grant.clone()
        }),
        None
    );
    assert_eq!(
        mine(&LoanGrant {
            to_epoch: Epoch(0),
            ..grant.clone()
        }),
        None
    );
    assert_eq!(
        mine(&LoanGrant {
            asked_at: StoreMs(151),
            ..grant
        }),
        None,
        "its stamp is from the future"
    );
}

#[test]
fn a_grant_that_comes_after_its_term_is_ignored() {
    let (b, credits) = borrower();
    let (_, grant) = lend(lender().1, &ask(&b, 100, BASE), BASE, 500_000);
    assert_eq!(
        credits.take_up(&grant, TIMING, &b, StoreMs(100 + TERM)),
        None
    );
}

#[test]
fn what_was_returned_is_never_used_again() {
    let (b, credits) = borrower();
    let (us, loans) = lender();
    let (loans, grant) = lend(loans, &ask(&b, 100, BASE), BASE, 500_000);
    let credits = credits
        .take_up(&grant, TIMING, &b, StoreMs(150))
        .expect("it is fresh");
    let credits = credits.keep(&us, BASE / 4);
    assert_eq!(
        credits.borrowed_at(StoreMs(160)),
        BASE / 4,
        "it lowers its own share first"
    );
    let statement = credits.statements(&b, StoreMs(0)).remove(0);
    assert_eq!(
        (statement.up_to, statement.keep_ppb),
        (StoreMs(100), BASE / 4)
    );
    let loans = loans.believe(&statement).expect("it frees something");
    assert_eq!(loans.lent_at(StoreMs(500_100)), BASE / 4);
    assert_eq!(
        credits.clone().take_up(&grant, TIMING, &b, StoreMs(170)),
        None,
        "the grant came twice"
    );
    // The stamp outlives its term by a span: a small step back doesn't make the grant new.
    let later = credits.at(Epoch(1), StoreMs(100 + TERM + SPAN_MS - 1), 0);
    assert_eq!(
        later.take_up(&grant, TIMING, &b, StoreMs(100 + TERM - 1)),
        None
    );
}

#[test]
fn a_statement_says_nothing_of_newer_grants() {
    let (b, _) = borrower();
    let (us, loans) = lender();
    let (loans, _) = lend(loans, &ask(&b, 100, BASE), BASE / 2, 500_000);
    let (loans, _) = lend(loans, &ask(&b, 200, BASE), BASE, 500_010);
    let statement = Statement {
        by: b,
        epoch: Epoch(1),
        to: us,
        up_to: StoreMs(100),
        keep_ppb: 0,
    };
    let loans = loans.believe(&statement).expect("it frees the older grant");
    assert_eq!(loans.lent_at(StoreMs(500_020)), BASE);
}

#[test]
fn a_statement_of_another_life_frees_nothing() {
    let (b, _) = borrower();
    let (us, loans) = lender();
    let (loans, _) = lend(loans, &ask(&b, 100, BASE), BASE, 500_000);
    let by = actor("borrower", 9);
    let statement = Statement {
        by,
        epoch: Epoch(1),
        to: us,
        up_to: StoreMs(100),
        keep_ppb: 0,
    };
    assert_eq!(loans.believe(&statement), None);
}

#[test]
fn what_an_older_epoch_of_a_borrower_was_granted_comes_back_once_it_tells_of_a_newer_one() {
    let (b, _) = borrower();
    let (loans, _) = lend(lender().1, &ask(&b, 100, BASE), BASE, 500_000);
    let other_life = actor("borrower", 9);
    assert_eq!(
        loans.clone().forget_older_epochs(&other_life, Epoch(5)),
        loans
    );
    assert_eq!(loans.clone().forget_older_epochs(&b, Epoch(1)), loans);
    assert!(loans.forget_older_epochs(&b, Epoch(2)).is_empty());
}

#[test]
fn a_new_epoch_has_borrowed_nothing_and_counts_all_as_lent() {
    let (b, credits) = borrower();
    let (_, grant) = lend(lender().1, &ask(&b, 100, BASE), BASE, 500_000);
    let credits = credits
        .take_up(&grant, TIMING, &b, StoreMs(150))
        .expect("it is fresh");
    let credits = credits.at(Epoch(2), StoreMs(200), 0);
    assert!(credits.is_empty());
    let lent_all = Some(LentAll {
        until: StoreMs(1_000),
    });
    let shares = credits.shares(BASE, 7, lent_all, StoreMs(200));
    assert_eq!(shares, vec![(StoreMs(200), 7), (StoreMs(1_000), BASE)]);
}

#[test]
fn the_shares_of_lender_and_borrower_never_add_up_to_more_than_before() {
    let (b, credits) = borrower();
    let (loans, grant) = lend(lender().1, &ask(&b, 1_000, BASE), BASE / 2, 1_020);
    let credits = credits
        .take_up(&grant, TIMING, &b, StoreMs(1_050))
        .expect("it is fresh");
    let at = |loans: &Loans, now: u64| {
        let steps = loans.shares(BASE, 0, None, StoreMs(1_050));
        steps
            .iter()
            .rev()
            .find(|(from, _)| from.0 <= now)
            .map_or(0, |(_, ppb)| *ppb)
    };
    for now in (1_050..60_000).step_by(50) {
        assert!(at(&loans, now) + at(&credits, now) <= 2 * BASE, "at {now}");
    }
    assert_eq!(at(&credits, 5_000), BASE + BASE / 2);
    assert_eq!(at(&loans, 59_000), BASE, "and all comes back");
}

#[test]
fn rows_are_cumulative_and_merge_by_maximum() {
    let (giver, taker) = (actor("giver", 1), actor("taker", 2));
    let (given, first) = Transfers::default()
        .give(&giver, &taker, 5, StoreMs(10))
        .expect("the ask is new");
    let (given, second) = given
        .give(&giver, &taker, 3, StoreMs(20))
        .expect("the ask is new");
    assert_eq!((first.units, second.units, given.delta()), (5, 8, -8));
    assert_eq!(
        given.clone().give(&giver, &taker, 1, StoreMs(20)),
        None,
        "the ask was answered"
    );
    let taken = Transfers::default()
        .take_in(&taker, &second)
        .expect("it is new");
    assert_eq!(taken.delta(), 8);
    assert_eq!(taken.clone().take_in(&taker, &first), None, "late");
    assert_eq!(taken.take_in(&taker, &second), None, "twice");
}

#[test]
fn a_row_is_from_life_to_life() {
    let (giver, taker) = (actor("giver", 1), actor("taker", 2));
    let (_, row) = Transfers::default()
        .give(&giver, &taker, 5, StoreMs(10))
        .expect("the ask is new");
    let reborn = actor("taker", 3);
    assert_eq!(Transfers::default().take_in(&reborn, &row), None);
    let of_an_older_life = Row {
        from: actor("giver", 7),
        ..row.clone()
    };
    let taken = Transfers::default()
        .take_in(&taker, &row)
        .and_then(|t| t.take_in(&taker, &of_an_older_life));
    assert_eq!(
        taken.map(|t| t.delta()),
        Some(10),
        "each life of the giver gave its own"
    );
}

#[test]
fn a_row_is_sent_until_it_is_confirmed() {
    let (giver, taker) = (actor("giver", 1), actor("taker", 2));
    let (given, row) = Transfers::default()
        .give(&giver, &taker, 5, StoreMs(10))
        .expect("the ask is new");
    assert_eq!(given.unconfirmed(&giver), vec![row]);
    let seen = |units| RowSeen {
        from: giver.clone(),
        to: taker.clone(),
        units,
    };
    let partly = given.confirm(&giver, &seen(4)).expect("it is news");
    assert_eq!(partly.unconfirmed(&giver).len(), 1);
    let wholly = partly.confirm(&giver, &seen(5)).expect("it is news");
    assert!(wholly.unconfirmed(&giver).is_empty());
    assert_eq!(wholly.confirm(&giver, &seen(5)), None);
}

#[test]
fn what_another_version_wrote_is_not_misread() {
    let bytes = Allotment::Transfers(Transfers::default()).to_bytes();
    assert!(Allotment::from_bytes(&bytes).is_ok());
    let mut other = bytes;
    other[0] = 9;
    assert!(Allotment::from_bytes(&other).is_err());
    assert!(Allotment::from_bytes(&[]).is_err());
}
