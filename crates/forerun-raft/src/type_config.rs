//! The types that openraft is used with.

use crate::{Request, Response, SnapshotData};

openraft::declare_raft_types!(
    /// Types for openraft: nodes have a number and an address. To use another type for nodes,
    /// declare your own types with the same `D`, `R`, `Entry` and `SnapshotData`.
    pub TypeConfig:
        D = Request,
        R = Response,
        NodeId = u64,
        Node = openraft::BasicNode,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = SnapshotData,
);
