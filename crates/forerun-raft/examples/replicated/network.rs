//! openraft's network: requests to other nodes over HTTP.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Read;
use std::time::Duration;

use forerun_raft::TypeConfig;
use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, RemoteError, ReplicationClosed, StreamingError,
    Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, Snapshot, Vote};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::{Agent, SendBody};

use crate::node::SnapshotHeader;

/// The time for sending a whole snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Network {
    agent: Agent,
    proxies: BTreeMap<u64, String>,
}

impl Network {
    /// `proxies` are addresses of nodes that replace those of the membership.
    pub fn new(proxies: BTreeMap<u64, String>) -> Network {
        let config = Agent::config_builder().timeout_connect(Some(Duration::from_secs(1)));
        Network {
            agent: config.build().new_agent(),
            proxies,
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Connection {
        Connection {
            agent: self.agent.clone(),
            target,
            address: self.proxies.get(&target).unwrap_or(&node.addr).clone(),
        }
    }
}

pub struct Connection {
    agent: Agent,
    target: u64,
    address: String,
}

type RpcError = RPCError<u64, BasicNode, RaftError<u64>>;

impl Connection {
    async fn call<A>(
        &self,
        path: &str,
        request: &impl Serialize,
        ttl: Duration,
    ) -> Result<A, RpcError>
    where
        A: DeserializeOwned + Send + 'static,
    {
        let body = postcard::to_stdvec(request).map_err(|error| NetworkError::new(&error))?;
        let url = format!("http://{}{path}", self.address);
        let agent = self.agent.clone();
        let sent = blocking(move || {
            let request = agent.post(url).config().timeout_global(Some(ttl)).build();
            read_answer(request.send(&body)?)
        });
        let answer: Result<A, RaftError<u64>> = sent.await?;
        Ok(answer.map_err(|error| RemoteError::new(self.target, error))?)
    }
}

/// A failed call.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error(transparent)]
    Http(#[from] ureq::Error),
    #[error("the answer cannot be decoded: {0}")]
    Answer(#[from] postcard::Error),
    #[error("the call panicked: {0}")]
    Panicked(#[from] tokio::task::JoinError),
}

impl From<CallError> for RpcError {
    fn from(error: CallError) -> RpcError {
        match &error {
            CallError::Http(ureq::Error::Io(_) | ureq::Error::ConnectionFailed) => {
                Unreachable::new(&error).into()
            }
            _ => NetworkError::new(&error).into(),
        }
    }
}

async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, CallError> + Send + 'static,
) -> Result<T, CallError> {
    tokio::task::spawn_blocking(call).await?
}

fn read_answer<A: DeserializeOwned>(
    mut answer: ureq::http::Response<ureq::Body>,
) -> Result<A, CallError> {
    Ok(postcard::from_bytes(&answer.body_mut().read_to_vec()?)?)
}

impl RaftNetwork<TypeConfig> for Connection {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RpcError> {
        self.call("/raft/append", &request, option.hard_ttl()).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RpcError> {
        self.call("/raft/vote", &request, option.hard_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<TypeConfig>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        let header: SnapshotHeader = (vote, snapshot.meta);
        let header = postcard::to_stdvec(&header).map_err(|error| NetworkError::new(&error))?;
        let mut start = u32::try_from(header.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes()
            .to_vec();
        start.extend_from_slice(&header);
        let url = format!("http://{}/raft/snapshot", self.address);
        let (agent, mut content) = (self.agent.clone(), snapshot.snapshot);
        let sent = blocking(move || {
            // The content is read as it is sent: it is never in memory as a whole.
            let mut body = start.as_slice().chain(&mut *content);
            let request = agent.post(url).config();
            let request = request.timeout_global(Some(SNAPSHOT_TIMEOUT)).build();
            read_answer(request.send(SendBody::from_reader(&mut body))?)
        });
        let answer: Result<SnapshotResponse<u64>, Fatal<u64>> = tokio::select! {
            answer = sent => answer.map_err(|error| Unreachable::new(&error))?,
            closed = cancel => return Err(closed.into()),
        };
        Ok(answer.map_err(|error| RemoteError::new(self.target, error))?)
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(Duration::from_millis(200)))
    }
}
