//! What operators ask and decide.
