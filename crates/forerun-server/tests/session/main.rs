//! Sessions without sockets: what the server answers to bytes.

mod binary;
mod binary_model;
mod conversations;
mod counts;
mod differential;
mod dumps;
mod exptimes;
mod full;
mod memcached;
mod model;
mod warm_up;

#[path = "../testing/mod.rs"]
mod testing;
#[path = "../testing/warm_up_model.rs"]
mod warm_up_model;
#[path = "../testing/warm_up_race.rs"]
mod warm_up_race;
