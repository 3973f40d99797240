//! Networks that are cut between the nodes. Clients reach every node all the time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;

use crate::await_progress;
use crate::clients::History;
use crate::cluster::Cluster;
use crate::proxy::{Link, Loss};

/// How long nobody may be elected while the leader is heard but hears nothing.
const UNANSWERED: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// No message reaches the leader, and none of its own arrives.
    LeaderAlone,
    /// No request of the leader arrives. The others reach it.
    LeaderUnheard,
    /// The leader's requests arrive, but no answers to them.
    LeaderUnanswered,
    /// As for the leader. It asks for votes until it is back.
    FollowerAlone,
    /// The leader and one follower do not reach each other; the other follower reaches both.
    LeaderAndFollower,
}

impl Cut {
    pub const ALL: [Cut; 5] = [
        Cut::LeaderAlone,
        Cut::LeaderUnheard,
        Cut::LeaderUnanswered,
        Cut::FollowerAlone,
        Cut::LeaderAndFollower,
    ];
}

/// A link for each ordered pair of nodes.
pub struct Network {
    addresses: Arc<Mutex<BTreeMap<u64, String>>>,
    links: BTreeMap<(u64, u64), Link>,
}

impl Network {
    pub fn start(nodes: u64) -> anyhow::Result<Network> {
        let addresses = Arc::new(Mutex::new(BTreeMap::<u64, String>::new()));
        let mut links = BTreeMap::new();
        for from in 1..=nodes {
            for to in (1..=nodes).filter(|to| *to != from) {
                let addresses = Arc::clone(&addresses);
                let target = move || {
                    let addresses = addresses.lock().unwrap_or_else(PoisonError::into_inner);
                    addresses.get(&to).cloned()
                };
                links.insert((from, to), Link::start(Arc::new(target))?);
            }
        }
        Ok(Network { addresses, links })
    }

    pub fn set_address(&self, node: u64, address: &str) {
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        addresses.insert(node, address.to_owned());
    }

    /// The addresses that a node uses for the others.
    pub fn proxies(&self, node: u64) -> BTreeMap<u64, String> {
        let of_node = self.links.iter().filter(|((from, _), _)| *from == node);
        of_node
            .map(|((_, to), link)| (*to, link.address().to_owned()))
            .collect()
    }

    fn lose(&self, from: u64, to: u64, what: Loss) {
        self.links[&(from, to)].lose(what);
    }

    fn cut(&self, one: u64, other: u64) {
        self.lose(one, other, Loss::Requests);
        self.lose(other, one, Loss::Requests);
    }

    fn heal(&self) {
        for link in self.links.values() {
            link.lose(Loss::Nothing);
        }
    }
}

pub fn run_round(
    cluster: &Cluster,
    network: &Network,
    history: &History,
    cut: Cut,
) -> anyhow::Result<()> {
    await_progress(history)?;
    let leader = cluster.leader()?;
    let nodes = cluster.running();
    let followers: Vec<u64> = nodes.into_iter().filter(|id| *id != leader).collect();
    match cut {
        Cut::LeaderAlone => {
            followers.iter().for_each(|id| network.cut(leader, *id));
            await_progress(history)?;
            answers_nothing(cluster, leader)?;
            await_progress(history)?;
        }
        Cut::LeaderUnheard => {
            for follower in followers {
                network.lose(leader, follower, Loss::Requests);
            }
            await_progress(history)?;
        }
        Cut::LeaderUnanswered => {
            for follower in followers {
                network.lose(leader, follower, Loss::Answers);
            }
            std::thread::sleep(UNANSWERED);
            answers_nothing(cluster, leader)?;
        }
        Cut::FollowerAlone => {
            let (alone, other) = (followers[0], followers[1]);
            network.cut(alone, leader);
            network.cut(alone, other);
            await_progress(history)?;
            answers_nothing(cluster, alone)?;
        }
        Cut::LeaderAndFollower => {
            network.cut(leader, followers[0]);
            await_progress(history)?;
        }
    }
    network.heal();
    await_progress(history)
}

/// A node that hears from no other one confirms no write, and returns no value: it cannot know
/// whether another leader has written since.
fn answers_nothing(cluster: &Cluster, node: u64) -> anyhow::Result<()> {
    let (client, address) = (cluster.client(), cluster.address(node));
    let keys = serde_json::json!(["alone"]);
    let read = client.post(address, "/multi_get", &keys);
    ensure!(read.is_err(), "node {node} returned a value: {read:?}");
    let ops = serde_json::json!([["alone", "1"]]);
    let written = client.post(address, "/write", &ops);
    ensure!(written.is_err(), "node {node} confirmed a write");
    Ok(())
}
