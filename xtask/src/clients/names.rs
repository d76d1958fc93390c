//! The cases that every client has, and the promises of the pipeline. Each has to be reported:
//! otherwise nothing would show that a test was renamed or left out.

use super::reports::Trial;

/// The clients, as trials name them.
const CLIENTS: [&str; 6] = ["python", "sqlalchemy", "typescript", "go", "jdbc", "spring"];

/// The cases that each client has.
const CASES: [&str; 13] = [
    "an_enqueue_commits_with_its_transaction",
    "a_redelivery_has_one_effect",
    "a_handler_that_is_killed_leaves_nothing",
    "a_swallowed_error_is_a_failure",
    "a_transaction_that_a_handler_ends_is_a_failure",
    "a_redrive_whose_handler_ends_its_transaction_fails",
    "a_handler_that_hangs_loses_its_session",
    "a_handler_that_always_fails_becomes_a_dead_letter",
    "a_refused_message_becomes_a_dead_letter",
    "what_a_peer_writes_does_not_stop_the_consumer",
    "a_redrive_takes_effect_once",
    "a_redrive_that_ends_its_process_is_given_up",
    "the_shared_vectors_hold",
];

/// The cases of what both Java clients share.
const OF_JAVA: [&str; 2] =
    ["guard/an_address_keeps_what_it_says", "guard/a_broker_of_an_unknown_authority_is_refused"];

/// The cases of the webhook in Python.
const OF_WEBHOOK: [&str; 6] = [
    "webhook/a_repeated_request_has_one_effect",
    "webhook/only_what_was_signed_has_an_effect",
    "webhook/a_failure_leaves_nothing_and_says_whose_it_is",
    "webhook/attributes_are_decoded",
    "webhook/what_is_no_order_is_refused_for_good",
    "webhook/an_event_in_the_body_says_everything",
];

/// The promises that the pipeline checks for each client.
const PROMISES: [&str; 8] = [
    "every_message_has_one_effect",
    "the_order_of_keys_is_kept",
    "events_of_handlers_commit_with_their_effects",
    "handlers_were_killed_and_messages_came_again",
    "a_lost_session_ends_the_process",
    "a_database_that_refuses_counts_no_delivery",
    "an_older_schema_ends_the_process",
    "dead_letters_were_redriven",
];

/// The promise that the pipeline checks as a whole.
const VERIFIED: &str = "pipeline/relay_verify_finds_nothing";

fn expected() -> Vec<String> {
    let of_clients = CLIENTS.iter().flat_map(|client| CASES.map(|case| format!("{client}/{case}")));
    let of_pipeline =
        CLIENTS.iter().flat_map(|client| PROMISES.map(|promise| format!("pipeline/{client}/{promise}")));
    let once = OF_JAVA.into_iter().chain(OF_WEBHOOK).chain([VERIFIED]).map(str::to_owned);
    of_clients.chain(of_pipeline).chain(once).collect()
}

/// The outcome of all trials.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    /// The name of each trial that failed or did not run, and why.
    pub(crate) failures: Vec<String>,
}

/// Counts the trials. One that was expected and is not there has failed.
pub(super) fn tally(trials: &[Trial]) -> Tally {
    let mut tally = Tally::default();
    let is_missing = |name: &String| trials.iter().all(|trial| trial.name != *name);
    tally.failures.extend(
        expected().iter().filter(|name| is_missing(name)).map(|name| format!("{name}: it did not run")),
    );
    for Trial { name, failure } in trials {
        match failure {
            None => tally.passed += 1,
            Some(why) => tally.failures.push(format!("{name}: {why}")),
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_did_not_run_has_failed() {
        let passed = |name: String| Trial { name, failure: None };
        let mut trials: Vec<Trial> = expected().into_iter().map(passed).collect();
        assert!(tally(&trials).failures.is_empty());
        let without_first = tally(&trials[1..]).failures;
        assert_eq!(without_first, ["python/an_enqueue_commits_with_its_transaction: it did not run"]);
        let expected = trials.len() as u64;
        trials.push(Trial { name: "go/more".to_owned(), failure: Some("broken".to_owned()) });
        let tally = tally(&trials);
        assert_eq!((tally.passed, tally.failures), (expected, vec!["go/more: broken".to_owned()]));
    }
}
