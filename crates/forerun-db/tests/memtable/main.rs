//! The memtable, by every search, in every order, alone and from several threads.

mod cursor;
mod full;
mod insertion;
mod orders;
mod published_keys;
mod searches;

#[path = "../testing/mod.rs"]
mod testing;
