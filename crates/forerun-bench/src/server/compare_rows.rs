//! The ratios of a result to others of the same run.

use super::PEER;
use super::form::{Form, Protocol};
use super::link::Transport;
use super::result_row::ServerRow;
use forerun_measure::harness::Outcome;

/// Adds the ratios: to the same server and form at the fewest keys per request; to the same
/// server's `get` and to the peer at the same number of keys. A form that the peer does not have is
/// compared with the peer's `get`. The peer is memcached in its protocol, and `resp_peer` in RESP.
/// Each element of `by_keys` has the same servers and forms in the
/// same order.
pub(super) fn compared(
    by_keys: &[Vec<(ServerRow, Outcome)>],
    forms: &[Form],
    resp_peer: Option<&str>,
) -> Vec<ServerRow> {
    let mut rows = Vec::new();
    for &form in forms {
        let get = Form::get_of(form.protocol()).to_string();
        let peer = match form.protocol() {
            Protocol::Memcached => Some(PEER),
            Protocol::Resp => resp_peer,
        };
        let form = form.to_string();
        for cell in by_keys {
            let find = |server: &str, form: &str, transport: &str, wait: &str| {
                let is_it = |(row, _): &&(ServerRow, Outcome)| {
                    row.common.engine == server
                        && row.common.case == form
                        && row.transport == transport
                        && row.client_wait == wait
                };
                cell.iter().find(is_it)
            };
            let tcp = Transport::Tcp.to_string();
            let of_form = cell.iter().enumerate();
            for (at, (row, outcome)) in of_form.filter(|(_, (row, _))| row.common.case == form) {
                let mut row = row.clone();
                let fewest = by_keys.iter().min_by_key(|cell| cell[at].0.common.batch);
                row.common.speedup_vs_single = fewest.map(|cell| outcome.ratio_to(&cell[at].1));
                let (server, transport, wait) =
                    (&row.common.engine, &row.transport, &row.client_wait);
                let ratio = |(_, measured): &(ServerRow, Outcome)| outcome.ratio_to(measured);
                let vs_get = find(server, &get, transport, wait).map(ratio);
                let vs_tcp = find(server, &form, &tcp, wait).map(ratio);
                let of_peer = |form: &str| find(peer?, form, &tcp, wait);
                let compared = of_peer(&form).or_else(|| of_peer(&get));
                let is_tcp = *transport == tcp;
                row.vs_get = vs_get.filter(|_| form != get);
                row.vs_tcp = vs_tcp.filter(|_| !is_tcp);
                if let Some((theirs, measured)) = compared {
                    row.common.speedup_vs_peer = Some(outcome.ratio_to(measured));
                    row.p99_vs_peer = Some(row.p99_us / theirs.p99_us);
                    let core_ns = theirs.core_ns_per_key.zip(row.core_ns_per_key);
                    row.core_vs_peer = core_ns.map(|(theirs, ours)| theirs / ours);
                }
                rows.push(row);
            }
        }
    }
    rows
}
