//! One node: the store, openraft, and an HTTP server for the other nodes and for clients.
//!
//! ```text
//!   POST /write             [["key", "value"], ["key", null], …]: null deletes; all at once
//!   POST /multi_get         ["key", …]  ->  ["value", null, …], linearizable
//!   POST /cluster/init      {"1": "127.0.0.1:7001", …}
//!   POST /cluster/learner   [4, "127.0.0.1:7004"]
//!   POST /cluster/members   [2, 3, 4]
//!   GET  /cluster           the node's view: its id, the leader, the last applied log index, …
//!   POST /raft/…            from other nodes, in postcard's format
//! ```
//!
//! A node that is not the leader answers 421 to `write` and `multi_get`, with the leader's address,
//! and has done nothing. After any other error (503) a write may still take effect, once. A request
//! of which no byte arrives for `IDLE_TIMEOUT` is given up (408).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use forerun_db::{Db, Options, Values};
use forerun_raft::{KvReader, REQUEST_BYTES_MAX, Request, Response, TypeConfig};
use http_body_util::BodyExt;
use openraft::error::{CheckIsLeaderError, RaftError};
use openraft::raft::{AppendEntriesRequest, VoteRequest};
use openraft::{BasicNode, Config, Raft, Snapshot, SnapshotMeta, SnapshotPolicy, Vote};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::network::Network;

/// What precedes the bytes of a snapshot: the leader's vote, and what the snapshot is.
pub type SnapshotHeader = (Vote<u64>, SnapshotMeta<u64, BasicNode>);

/// The longest header.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// The time for the next bytes of a snapshot, and for the whole body of another request. While a
/// snapshot is on its way, the log is not purged, so a sender that is cut off must not hold it up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a node is started.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub id: u64,
    /// Address and port.
    pub listen: String,
    /// Of the store.
    pub directory: PathBuf,
    /// The number of log entries after which a snapshot is built, and old entries are purged.
    pub entries_per_snapshot: u64,
    /// Addresses to use for other nodes instead of those of the membership.
    pub proxies: BTreeMap<u64, String>,
}

struct Node {
    id: u64,
    raft: Raft<TypeConfig>,
    reader: KvReader,
}

type Shared = State<Arc<Node>>;
type Answer = (StatusCode, Vec<u8>);

/// Runs a node until the process ends.
pub fn run(options: &NodeOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(serve(options))
}

async fn serve(options: &NodeOptions) -> anyhow::Result<()> {
    let store = Options::default()
        .memory_limit_bytes(128 << 20)
        .memtable_bytes(16 << 20)
        .cache_bytes(32 << 20);
    let db = Db::open(&options.directory, store)?;
    let (log, state_machine) = forerun_raft::open::<TypeConfig>(&db)?;
    let reader = state_machine.reader();
    let config = Config {
        cluster_name: "replicated".to_owned(),
        heartbeat_interval: 200,
        election_timeout_min: 800,
        election_timeout_max: 1600,
        install_snapshot_timeout: 10_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(options.entries_per_snapshot),
        max_in_snapshot_log_to_keep: options.entries_per_snapshot / 10,
        ..Config::default()
    };
    let config = Arc::new(config.validate()?);
    let network = Network::new(options.proxies.clone());
    let raft = Raft::new(options.id, config, network, log, state_machine).await?;
    let node = Node {
        id: options.id,
        raft,
        reader,
    };
    let router = Router::new()
        .route("/write", post(write))
        .route("/multi_get", post(multi_get))
        .route("/cluster", get(cluster))
        .route("/cluster/init", post(init))
        .route("/cluster/learner", post(add_learner))
        .route("/cluster/members", post(change_members))
        .route("/raft/append", post(raft_append))
        .route("/raft/vote", post(raft_vote))
        .route("/raft/snapshot", post(raft_snapshot))
        .layer(DefaultBodyLimit::max(4 * REQUEST_BYTES_MAX))
        .with_state(Arc::new(node));
    let listener = tokio::net::TcpListener::bind(&options.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", options.listen))?;
    Ok(axum::serve(listener, router).await?)
}

async fn write(State(node): Shared, Content(body): Content) -> Answer {
    let ops: Vec<(String, Option<String>)> = match from_json(&body) {
        Ok(ops) => ops,
        Err(answer) => return answer,
    };
    let request = ops
        .into_iter()
        .fold(Request::new(), |request, op| match op {
            (key, Some(value)) => request.put(key, value),
            (key, None) => request.delete(key),
        });
    if let Err(error) = request.check() {
        return (StatusCode::BAD_REQUEST, error.to_string().into_bytes());
    }
    // Later, the same error of openraft may concern a write that will be committed after all.
    if node.raft.current_leader().await != Some(node.id) {
        return node.not_the_leader();
    }
    match node.raft.client_write(request).await {
        Ok(written) if written.data == Response::Applied => (StatusCode::OK, Vec::new()),
        Ok(written) => (
            StatusCode::BAD_REQUEST,
            written.data.to_string().into_bytes(),
        ),
        Err(error) => unavailable(&error),
    }
}

async fn multi_get(State(node): Shared, Content(body): Content) -> Answer {
    let keys: Vec<String> = match from_json(&body) {
        Ok(keys) => keys,
        Err(answer) => return answer,
    };
    match node.raft.ensure_linearizable().await {
        Ok(_) => {}
        Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_))) => {
            return node.not_the_leader();
        }
        Err(error) => return unavailable(&error),
    }
    // A page that is not in memory is read from disk.
    let mut values = Values::new();
    let answers = tokio::task::block_in_place(|| node.reader.multi_get(&keys, &mut values));
    match answers.and_then(|()| values.to_vec()) {
        Ok(values) => {
            let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
            let values: Vec<Option<String>> =
                values.into_iter().map(|value| value.map(text)).collect();
            json(&values)
        }
        Err(error) => unavailable(&error),
    }
}

async fn cluster(State(node): Shared) -> Answer {
    let metrics = node.raft.metrics().borrow().clone();
    let members: BTreeMap<u64, String> = metrics
        .membership_config
        .nodes()
        .map(|(&id, node)| (id, node.addr.clone()))
        .collect();
    let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
    json(&serde_json::json!({
        "id": node.id,
        "leader": metrics.current_leader,
        "term": metrics.current_term,
        "last_log": metrics.last_log_index,
        "applied": metrics.last_applied.map(|log_id| log_id.index),
        "snapshot": metrics.snapshot.map(|log_id| log_id.index),
        "members": members,
        "voters": voters,
    }))
}

async fn init(State(node): Shared, Content(body): Content) -> Answer {
    let addresses: BTreeMap<u64, String> = match from_json(&body) {
        Ok(addresses) => addresses,
        Err(answer) => return answer,
    };
    let node_of = |(id, addr)| (id, BasicNode { addr });
    let members: BTreeMap<u64, BasicNode> = addresses.into_iter().map(node_of).collect();
    done(node.raft.initialize(members).await)
}

async fn add_learner(State(node): Shared, Content(body): Content) -> Answer {
    match from_json::<(u64, String)>(&body) {
        // `true`: wait until it has caught up.
        Ok((id, addr)) => done(node.raft.add_learner(id, BasicNode { addr }, true).await),
        Err(answer) => answer,
    }
}

async fn change_members(State(node): Shared, Content(body): Content) -> Answer {
    match from_json::<BTreeSet<u64>>(&body) {
        // `false`: voters that are left out leave the cluster.
        Ok(ids) => done(node.raft.change_membership(ids, false).await),
        Err(answer) => answer,
    }
}

async fn raft_append(State(node): Shared, Content(body): Content) -> Answer {
    match postcard::from_bytes::<AppendEntriesRequest<TypeConfig>>(&body) {
        Ok(request) => binary(&node.raft.append_entries(request).await),
        Err(error) => bad_request(&error),
    }
}

async fn raft_vote(State(node): Shared, Content(body): Content) -> Answer {
    match postcard::from_bytes::<VoteRequest<u64>>(&body) {
        Ok(request) => binary(&node.raft.vote(request).await),
        Err(error) => bad_request(&error),
    }
}

async fn raft_snapshot(State(node): Shared, body: Body) -> Answer {
    match node.receive_snapshot(body).await {
        Ok(answer) => answer,
        Err(error) if error.is::<Elapsed>() => {
            (StatusCode::REQUEST_TIMEOUT, error.to_string().into_bytes())
        }
        Err(error) => bad_request(&format!("{error:#}")),
    }
}

impl Node {
    fn not_the_leader(&self) -> Answer {
        let metrics = self.raft.metrics().borrow().clone();
        let members = metrics.membership_config.membership();
        let leader = metrics.current_leader.and_then(|id| members.get_node(&id));
        let address = leader.map_or_else(Vec::new, |leader| leader.addr.clone().into_bytes());
        (StatusCode::MISDIRECTED_REQUEST, address)
    }

    /// The body is the length of the header (u32, little-endian), the header, and the bytes of the
    /// snapshot, which go to the store as they arrive.
    async fn receive_snapshot(&self, mut body: Body) -> anyhow::Result<Answer> {
        let mut start = Vec::new();
        let header = loop {
            if let Some((header, rest)) = split_header(&start)? {
                start.drain(..start.len() - rest);
                break header;
            }
            let piece = next_piece(&mut body).await?;
            start.extend_from_slice(&piece.context("the header is incomplete")?);
        };
        let (vote, meta): SnapshotHeader = postcard::from_bytes(&header)?;
        let mut snapshot = self.raft.begin_receiving_snapshot().await?;
        tokio::task::block_in_place(|| snapshot.write_all(&start))?;
        while let Some(piece) = next_piece(&mut body).await? {
            tokio::task::block_in_place(|| snapshot.write_all(&piece))?;
        }
        let snapshot = Snapshot { meta, snapshot };
        Ok(binary(
            &self.raft.install_full_snapshot(vote, snapshot).await,
        ))
    }
}

/// The header, and the number of bytes after it, if the header has arrived.
fn split_header(bytes: &[u8]) -> anyhow::Result<Option<(Vec<u8>, usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    anyhow::ensure!(length <= HEADER_BYTES_MAX, "a header of {length} bytes");
    let header = rest.split_at_checked(length);
    Ok(header.map(|(header, rest)| (header.to_vec(), rest.len())))
}

async fn next_piece(body: &mut Body) -> anyhow::Result<Option<Bytes>> {
    while let Some(frame) = timeout(IDLE_TIMEOUT, body.frame()).await? {
        if let Ok(bytes) = frame?.into_data() {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

/// The body of a request, if it arrives in time.
struct Content(Bytes);

impl<S: Send + Sync> FromRequest<S> for Content {
    type Rejection = axum::response::Response;

    async fn from_request(
        request: axum::extract::Request,
        state: &S,
    ) -> Result<Content, Self::Rejection> {
        match timeout(IDLE_TIMEOUT, Bytes::from_request(request, state)).await {
            Ok(Ok(bytes)) => Ok(Content(bytes)),
            Ok(Err(rejection)) => Err(rejection.into_response()),
            Err(elapsed) => Err((StatusCode::REQUEST_TIMEOUT, elapsed.to_string()).into_response()),
        }
    }
}

fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Answer> {
    serde_json::from_slice(body).map_err(|error| bad_request(&error))
}

fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => (StatusCode::OK, bytes),
        Err(error) => unavailable(&error),
    }
}

fn binary(value: &impl Serialize) -> Answer {
    match postcard::to_stdvec(value) {
        Ok(bytes) => (StatusCode::OK, bytes),
        Err(error) => unavailable(&error),
    }
}

fn done<T>(result: Result<T, impl std::fmt::Display>) -> Answer {
    match result {
        Ok(_) => (StatusCode::OK, Vec::new()),
        Err(error) => unavailable(&error),
    }
}

fn bad_request(error: &impl ToString) -> Answer {
    (StatusCode::BAD_REQUEST, error.to_string().into_bytes())
}

fn unavailable(error: &impl ToString) -> Answer {
    (
        StatusCode::SERVICE_UNAVAILABLE,
        error.to_string().into_bytes(),
    )
}
