//! A cache of byte strings within a hard memory limit, whose every lookup is a batch.
