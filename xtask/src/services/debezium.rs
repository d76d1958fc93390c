//! Debezium's connector and the Kafka Connect that runs it, for migrations from it and for
//! comparisons with it. Only jars; it is not a service of ours.

use super::{
    fault::Fault,
    java::{self, Bundle},
};
use std::path::PathBuf;

/// The variable in which tests and benchmarks look for the folder with the jars.
pub(crate) const JARS_VARIABLE: &str = "OUTBOX_DEBEZIUM_JARS";

const BUNDLE: Bundle = Bundle {
    version: "3.3.1",
    artifacts: &[
        ("io.debezium", "debezium-connector-postgres", "3.3.1.Final"),
        ("org.apache.kafka", "connect-runtime", "4.1.0"),
        // The same as for Kafka itself.
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
        ("org.apache.logging.log4j", "log4j-core", "2.24.3"),
    ],
    digest: "d3a2985228d13f9e230a411565b8f9b7d1ca64b63e08b0f4e73597f07628d071",
};

/// Installs Java and the jars on first use, and returns the folder with the jars.
pub(crate) fn install(phase: &dyn Fn(&str)) -> Result<PathBuf, Fault> {
    java::install("debezium", &BUNDLE, phase)
}
