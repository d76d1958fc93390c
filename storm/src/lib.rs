//! A storm: producers, relays and consumers in processes of their own, real services, and faults at random.
//!
//! | module | what it holds |
//! |---|---|
//! | [`faults`] | what can go wrong, each with its cure |
//! | [`pair`] | a database and a broker |
//! | [`stage`] | what a fault can reach: processes, wires, services, database, broker |

pub mod faults;
pub mod pair;
pub mod stage;

/// Why something could not be done.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
