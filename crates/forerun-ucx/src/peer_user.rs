//! Who is behind a Unix socket. UCX trusts its peers, and shared memory is for one user only, so
//! each side looks at the other's user before UCX gets to know its address.

use std::os::fd::AsFd;

/// Whether the peer of a connected Unix socket runs as this process's user.
#[cfg(target_os = "linux")]
pub fn is_own_user(socket: impl AsFd) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// Whether the peer of a connected Unix socket runs as this process's user. Unknown here.
#[cfg(not(target_os = "linux"))]
pub fn is_own_user(_: impl AsFd) -> bool {
    false
}
