//! Three processes, of which one or all are killed or one is stopped for a while in every round,
//! while clients write and read. The history must be linearizable, and at the end all nodes must
//! have the same entries.
//!
//! A leader that is stopped and continues later believes that it is still the leader, like one that
//! was cut off from the others. In another test, the network between the nodes is cut, and messages
//! are lost in one direction.
//!
//! `FORERUN_RAFT_KILLS` and `FORERUN_RAFT_PARTITIONS` are the numbers of rounds.

mod clients;
mod half_sent;
mod linearizability;
mod partitions;
mod proxy;
mod stopped;

#[path = "../../examples/replicated/cluster.rs"]
mod cluster;
#[path = "../../examples/replicated/cluster_client.rs"]
mod cluster_client;
#[path = "../../examples/replicated/network.rs"]
mod network;
#[path = "../../examples/replicated/node.rs"]
mod node;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clients::History;
use cluster::{Cluster, NodeCommand};
use forerun_db::{Db, Options};
use node::NodeOptions;
use partitions::{Cut, Network};

const NODES: u64 = 3;
const CLIENTS: u64 = 4;
/// Rounds without `FORERUN_RAFT_KILLS`. In each four, the leader, a follower, and all nodes are
/// killed, and the leader is stopped.
const ROUNDS: u64 = 100;
/// Few, so that a node that was down for a while needs a snapshot.
const ENTRIES_PER_SNAPSHOT: u64 = 100;
/// Operations that must succeed before and after a kill.
const PROGRESS: u64 = 40;
/// The time for that, on a loaded machine.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(120);

/// The process of a node: this test's program, with the test below.
fn child(options: &NodeOptions) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["process_of_a_node", "--exact", "--ignored", "--nocapture"]);
    let directory = options.directory.to_str().context("a path in UTF-8")?;
    let (id, entries) = (options.id, options.entries_per_snapshot);
    let node = format!("{id} {} {entries} {directory}", options.listen);
    command.env("FORERUN_RAFT_NODE", node);
    command.env(
        "FORERUN_RAFT_PROXIES",
        serde_json::to_string(&options.proxies)?,
    );
    command.stdout(std::process::Stdio::null());
    Ok(command)
}

#[test]
#[ignore = "runs a node for the other test"]
fn process_of_a_node() {
    let node = std::env::var("FORERUN_RAFT_NODE").expect("started by the other test");
    let parts: Vec<&str> = node.splitn(4, ' ').collect();
    let [id, listen, entries, directory] = parts[..] else {
        panic!("{node:?}");
    };
    let proxies = std::env::var("FORERUN_RAFT_PROXIES").expect("started by the other test");
    let proxies: BTreeMap<u64, String> = serde_json::from_str(&proxies).expect("addresses by node");
    cluster::end_with_input();
    let options = NodeOptions {
        id: id.parse().expect("a number"),
        listen: listen.to_owned(),
        directory: directory.into(),
        entries_per_snapshot: entries.parse().expect("a number"),
        proxies,
    };
    node::run(&options).expect("the node runs until it is killed");
}

#[test]
fn kills_leave_a_linearizable_history() -> anyhow::Result<()> {
    let rounds = rounds("FORERUN_RAFT_KILLS", ROUNDS)?;
    run_rounds(rounds, Box::new(child), run_round)
}

#[test]
fn partitions_leave_a_linearizable_history() -> anyhow::Result<()> {
    let rounds = rounds("FORERUN_RAFT_PARTITIONS", Cut::ALL.len() as u64)?;
    let network = Arc::new(Network::start(NODES)?);
    let of_nodes = Arc::clone(&network);
    let command = move |options: &NodeOptions| {
        of_nodes.set_address(options.id, &options.listen);
        child(&NodeOptions {
            proxies: of_nodes.proxies(options.id),
            ..options.clone()
        })
    };
    run_rounds(rounds, Box::new(command), |cluster, history, round| {
        let cut = Cut::ALL[round as usize % Cut::ALL.len()];
        let ran = partitions::run_round(cluster, &network, history, cut);
        ran.with_context(|| format!("{cut:?}"))
    })
}

fn rounds(variable: &str, usual: u64) -> anyhow::Result<u64> {
    match std::env::var(variable) {
        Ok(rounds) => rounds
            .parse()
            .with_context(|| format!("{variable} is a number of rounds")),
        Err(_) => Ok(usual),
    }
}

/// Clusters run one at a time: elections need CPU time.
static TURN: Mutex<()> = Mutex::new(());

fn run_rounds(
    rounds: u64,
    command: NodeCommand,
    mut run_round: impl FnMut(&mut Cluster, &History, u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir()?;
    let mut cluster = Cluster::start(NODES, directory.path(), ENTRIES_PER_SNAPSHOT, command)?;
    cluster.leader()?;
    let history = History::new();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let (history, client) = (&history, cluster.client());
            scope.spawn(move || history.run_client(&client, seed));
        }
        let ran = (0..rounds).try_for_each(|round| {
            history.round.store(round, Ordering::Relaxed);
            run_round(&mut cluster, &history, round).with_context(|| format!("round {round}"))
        });
        history.has_ended.store(true, Ordering::Relaxed);
        ran
    })?;
    let totals = history.check();
    println!("{rounds} rounds in {:?}: {totals:?}", begin.elapsed());
    ensure!(totals.writes > 0 && totals.reads > 0);
    compare_nodes(&mut cluster)
}

fn run_round(cluster: &mut Cluster, history: &History, round: u64) -> anyhow::Result<()> {
    await_progress(history)?;
    let leader = cluster.leader()?;
    let follower = cluster.running().into_iter().find(|id| *id != leader);
    let victims = match round % 4 {
        0 => vec![leader],
        1 => vec![follower.context("a follower runs")?],
        2 => cluster.running(),
        _ => {
            let stopped = stopped::stop(cluster.process(leader)?)?;
            await_progress(history)?;
            drop(stopped);
            return await_progress(history);
        }
    };
    for &victim in &victims {
        cluster.kill(victim)?;
    }
    if victims.len() == 1 {
        await_progress(history)?;
    }
    victims.iter().try_for_each(|victim| cluster.run(*victim))
}

fn await_progress(history: &History) -> anyhow::Result<()> {
    let goal = history.succeeded.load(Ordering::Relaxed) + PROGRESS;
    let deadline = Instant::now() + PROGRESS_TIMEOUT;
    while history.succeeded.load(Ordering::Relaxed) < goal {
        if Instant::now() > deadline {
            bail!("fewer than {PROGRESS} operations succeeded in {PROGRESS_TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until all nodes have applied the same entries, kills them, and compares their stores.
fn compare_nodes(cluster: &mut Cluster) -> anyhow::Result<()> {
    let client = cluster.client();
    client.write(&[("last", Some("1"))], PROGRESS_TIMEOUT)?;
    let deadline = Instant::now() + PROGRESS_TIMEOUT;
    let nodes = cluster.running();
    loop {
        let views = nodes
            .iter()
            .map(|id| client.get(cluster.address(*id), "/cluster"));
        let views = views.collect::<anyhow::Result<Vec<serde_json::Value>>>()?;
        let is_equal = |view: &serde_json::Value| {
            view["applied"] == views[0]["applied"] && view["applied"] == view["last_log"]
        };
        if views.iter().all(is_equal) {
            break;
        }
        ensure!(Instant::now() < deadline, "the nodes differ: {views:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut stores = Vec::new();
    for id in nodes {
        cluster.kill(id)?;
        let db = Db::open(cluster.store(id), Options::default())?;
        let (_log, machine) = forerun_raft::open::<forerun_raft::TypeConfig>(&db)?;
        let entries = machine.reader().read(|keyspace| keyspace.iter().collect());
        let entries: Vec<(Vec<u8>, Vec<u8>)> = entries?;
        stores.push(entries);
    }
    ensure!(stores[0].iter().any(|(key, _)| key == b"last"));
    ensure!(
        stores.iter().all(|entries| *entries == stores[0]),
        "the stores differ"
    );
    Ok(())
}
