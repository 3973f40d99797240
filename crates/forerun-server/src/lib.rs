#![forbid(unsafe_code)]
//! A cache server that speaks memcached's protocol and answers every request as a batch.
