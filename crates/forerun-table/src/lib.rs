//! Rows under 64-bit numbers in three tiers: GPU, memory and disk, each lookup a batch.
