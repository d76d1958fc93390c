//! Sagas: their starts, the effects of services, and the balances of services.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The sagas of one type, with the effects of services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sagas {
    /// Rows that a transaction wrote together with the start of the saga of that id.
    pub orders: Vec<Arc<str>>,
    /// The stored sagas.
    pub runs: Vec<SagaRun>,
    /// The steps that every finished saga has done.
    pub steps: Vec<Arc<str>>,
    /// The effects of steps and undos. Those of one service are in the order in which it applied
    /// them.
    pub effects: Vec<StepEffect>,
    /// The balances of services at the end.
    pub balances: Vec<Balance>,
}

/// A stored saga.
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
    /// The saga has not ended.
    Open,
    /// The saga ran to its end.
    Finished,
    /// Everything that the saga did was undone.
    Undone,
}

/// An effect of a step or an undo at a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepEffect {
    /// The saga's id.
    pub saga: Arc<str>,
    /// The name of the step.
    pub step: Arc<str>,
    /// The service.
    pub service: Arc<str>,
    /// Whether the effect is an undo of the step.
    pub is_undo: bool,
    /// The amount that was taken, or given back.
    pub amount: i64,
}

/// The balance of one account of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Balance {
    /// The service.
    pub service: Arc<str>,
    /// The account.
    pub account: Arc<str>,
    /// The amount that was taken, according to this account.
    pub taken: i64,
}
