//! Every promise of the models holds, and the absence of every rule is found.

use crate::{consumers, explore, pending, relays, sagas, transactions};

#[test]
fn with_all_rules_every_promise_holds_and_everything_that_should_be_reached_is() {
    for is_pipelined in [false, true] {
        let found = explore(relays::Relays::small(is_pipelined));
        assert!(found.holds(), "{found:#?}");
    }
    let found = explore(consumers::Consumers::small());
    assert!(found.holds(), "{found:#?}");
    for bounds in pending::Pending::small() {
        let found = explore(bounds);
        assert!(found.holds(), "{found:#?}");
    }
    let found = explore(sagas::Sagas::small());
    assert!(found.holds(), "{found:#?}");
    let found = explore(transactions::Transactions::small());
    assert!(found.holds(), "{found:#?}");
}

#[test]
fn every_rule_left_out_of_the_relays_is_found() {
    for breakage in relays::Breakage::ALL {
        let found = explore(relays::Relays::without(breakage));
        assert!(!found.broken.is_empty(), "{breakage:?} is not found in {} states", found.states);
    }
}

#[test]
fn every_rule_left_out_of_the_consumers_is_found() {
    for breakage in consumers::Breakage::ALL {
        let found = explore(consumers::Consumers::without(breakage));
        assert!(!found.broken.is_empty(), "{breakage:?} is not found in {} states", found.states);
    }
}

#[test]
fn every_rule_left_out_of_the_pending_rows_is_found() {
    for breakage in pending::Breakage::ALL {
        let found = explore(pending::Pending::without(breakage));
        assert!(!found.broken.is_empty(), "{breakage:?} is not found in {} states", found.states);
    }
}

#[test]
fn every_rule_left_out_of_the_sagas_is_found() {
    for breakage in sagas::Breakage::ALL {
        let found = explore(sagas::Sagas::without(breakage));
        assert!(!found.broken.is_empty(), "{breakage:?} is not found in {} states", found.states);
    }
}

#[test]
fn every_rule_left_out_of_the_transactions_is_found() {
    for breakage in transactions::Breakage::ALL {
        let found = explore(transactions::Transactions::without(breakage));
        assert!(!found.broken.is_empty(), "{breakage:?} is not found in {} states", found.states);
    }
}
