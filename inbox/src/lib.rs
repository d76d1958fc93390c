//! The transactional inbox: every message takes effect once.
