//! A topic about which the broker says nothing for a while, under a steady load.

use simulation::Breakage;
use simulation::containment::{COPIES_MAX, contain};

/// Loads that every test run goes through.
const LOADS: u64 = 20;

#[test]
fn a_silent_topic_loses_nothing_and_is_not_sent_over_and_over() {
    for seed in 0..LOADS {
        let contained = contain(seed, None);
        assert!(contained.outcome.failures.is_empty(), "seed {seed}: {:#?}", contained.outcome.failures);
        assert!(contained.copies <= COPIES_MAX, "seed {seed}: sent {} times", contained.copies);
    }
}

#[test]
fn a_silence_that_reaches_all_topics_is_found() {
    let contained = contain(0, Some(Breakage::SilenceSpreads));
    assert!(contained.problems().iter().any(|problem| problem.contains("other topics")));
}
