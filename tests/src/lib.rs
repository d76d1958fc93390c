//! Conformance suites and end-to-end tests on real components.
