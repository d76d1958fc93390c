//! The example programs, run as a user runs them: what they print is what their texts promise.
//!
//! | module | what it holds |
//! |---|---|
//! | [`program`] | building and running an example |
//! | [`producing`] | the order service, the embedded relay, plain SQL |
//! | [`billing`] | from the order service to an invoice, over every broker |

mod billing;
mod producing;
mod program;

fn main() -> std::process::ExitCode {
    let mut trials = producing::trials();
    trials.extend(billing::trials());
    tests::run(trials)
}
