//! A page, for people.
