//! The designs that are studied.
