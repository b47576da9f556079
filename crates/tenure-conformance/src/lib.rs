//! One suite.
