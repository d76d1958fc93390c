//! A topic for which the broker answers nothing for a while, or slowly, under a steady load.

use simulation::Breakage;
use simulation::containment::{contain, contain_slow};

/// Number of loads in every test run.
const LOADS: u64 = 20;

#[test]
fn a_silent_topic_delays_only_itself() {
    let (mut others, mut alone) = (0, 0);
    for seed in 0..LOADS {
        let contained = contain(seed, None);
        let problems = contained.problems();
        assert!(problems.is_empty(), "seed {seed}: {problems:#?}");
        (others, alone) = (others + contained.others, alone + contained.others_alone);
    }
    eprintln!("{others} messages of other topics were confirmed in {LOADS} silences, {alone} without them");
}

#[test]
fn a_silence_that_reaches_all_topics_is_found() {
    let contained = contain(0, Some(Breakage::SilenceSpreads));
    assert!(contained.problems().iter().any(|problem| problem.contains("other topics")));
}

/// Goal: a topic whose destination has room for a few messages, and works on one after the other,
/// delays no other, however many of its messages come. Oracle: the confirmations of the others,
/// beside the same load without it.
#[test]
fn a_slow_topic_delays_only_itself() {
    let (mut others, mut alone) = (0, 0);
    for seed in 0..LOADS {
        let contained = contain_slow(seed);
        let problems = contained.problems();
        assert!(problems.is_empty(), "seed {seed}: {problems:#?}");
        (others, alone) = (others + contained.others, alone + contained.others_alone);
    }
    eprintln!(
        "{others} messages of other topics were confirmed beside {LOADS} slow ones, {alone} without them"
    );
}
