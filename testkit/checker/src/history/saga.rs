//! Sagas: what was started, what each service did for them, and what their books say.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The sagas of one type, and what the services did for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sagas {
    /// Rows that a transaction wrote together with the start of the saga of that id.
    pub orders: Vec<Arc<str>>,
    /// The sagas that were stored.
    pub runs: Vec<SagaRun>,
    /// The steps that a finished one has done, whatever way it took.
    pub steps: Vec<Arc<str>>,
    /// The effects of steps and undos, those of one service in the order in which it took them.
    pub effects: Vec<StepEffect>,
    /// The books of the services, in the end.
    pub balances: Vec<Balance>,
}

/// A saga that was stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SagaRun {
    /// Its id.
    pub id: Arc<str>,
    /// Its state.
    pub state: SagaState,
}

/// The state of a saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SagaState {
    /// It has not ended.
    Open,
    /// It ran to its end.
    Finished,
    /// All that it did was undone.
    Undone,
}

/// Something that a service did for a saga.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepEffect {
    /// The saga's id.
    pub saga: Arc<str>,
    /// The name of the step.
    pub step: Arc<str>,
    /// The service.
    pub service: Arc<str>,
    /// Whether the step was undone.
    pub is_undo: bool,
    /// How much was taken, or given back.
    pub amount: i64,
}

/// One account of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Balance {
    /// The service.
    pub service: Arc<str>,
    /// The account.
    pub account: Arc<str>,
    /// How much was taken, by this account.
    pub taken: i64,
}
