//! One file for each page: a handler that calls `operate`, and the rendering of the result.

pub(crate) mod audit;
pub(crate) mod card;
mod causes;
mod choice;
pub(crate) mod consumers;
pub(crate) mod dead;
pub(crate) mod decide;
pub(crate) mod decision;
pub(crate) mod doctor;
pub(crate) mod edit;
mod filter_box;
pub(crate) mod held;
pub(crate) mod keys;
pub(crate) mod message;
pub(crate) mod messages;
pub(crate) mod overview;
pub(crate) mod pause;
pub(crate) mod pieces;
pub(crate) mod pipeline;
pub(crate) mod replay;
pub(crate) mod sagas;
pub(crate) mod tables;
pub(crate) mod topics;
pub(crate) mod verify;
