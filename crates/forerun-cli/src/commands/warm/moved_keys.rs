//! Which keys of an old server move to the new one.

use anyhow::bail;
use forerun_client::{Placement, Ring, ServerAddress};

use crate::exit::UsageError;

/// The rings before and after the change.
pub(super) struct MovedKeys {
    old: Ring,
    new: Ring,
    /// The position in the new ring of each old server; `None`: it leaves.
    stays: Vec<Option<usize>>,
    /// The position of the new server in the new ring.
    target: usize,
}

impl MovedKeys {
    /// The new ring has the old servers, except those that leave, and the new server.
    pub(super) fn new(
        placement: Placement,
        from: &[ServerAddress],
        leaving: &[ServerAddress],
        to: &ServerAddress,
    ) -> anyhow::Result<MovedKeys> {
        let is_same = |a: &ServerAddress, b: &ServerAddress| a.endpoint == b.endpoint;
        if let Some(server) = from.iter().find(|server| is_same(server, to)) {
            bail!(UsageError(format!("{server} is in --from and in --to")));
        }
        if let Some(at) = (1..from.len()).find(|at| {
            let before = &from[..*at];
            before.iter().any(|server| is_same(server, &from[*at]))
        }) {
            bail!(UsageError(format!("{} is in --from twice", from[at])));
        }
        let leaves = |server: &ServerAddress| leaving.iter().any(|other| is_same(server, other));
        if let Some(server) = leaving
            .iter()
            .find(|server| !from.iter().any(|other| is_same(server, other)))
        {
            bail!(UsageError(format!(
                "{server} is in --leaving, but not in --from"
            )));
        }
        let mut servers = Vec::new();
        let mut stays = Vec::new();
        for server in from {
            let at = (!leaves(server)).then_some(servers.len());
            servers.extend(at.map(|_| server.clone()));
            stays.push(at);
        }
        let target = servers.len();
        servers.push(to.clone());
        Ok(MovedKeys {
            old: Ring::new(placement, from),
            new: Ring::new(placement, &servers),
            stays,
            target,
        })
    }

    /// Whether the key belongs to this old server, and then to the new one. An old server may also
    /// have keys that belonged to it in an earlier ring; their values are out of date.
    pub(super) fn moves(&self, key: &[u8], from: usize) -> bool {
        self.new.server_of(key) == self.target && self.old.server_of(key) == from
    }

    /// Whether the key does not belong to this old server any more.
    pub(super) fn has_left(&self, key: &[u8], from: usize) -> bool {
        self.stays[from] != Some(self.new.server_of(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(names: &[&str]) -> Vec<ServerAddress> {
        let parse = |name: &&str| name.parse().expect(name);
        names.iter().map(parse).collect()
    }

    fn moved(from: &[&str], leaving: &[&str], to: &str) -> anyhow::Result<MovedKeys> {
        let to = to.parse().expect(to);
        MovedKeys::new(Placement::Ketama, &servers(from), &servers(leaving), &to)
    }

    fn keys() -> impl Iterator<Item = Vec<u8>> {
        (0..3000).map(|at| format!("key:{at}").into_bytes())
    }

    #[test]
    fn each_key_moves_from_the_server_that_had_it_or_stays_there() {
        let moved = moved(&["a", "b"], &[], "c").expect("rings");
        let old = Ring::new(Placement::Ketama, &servers(&["a", "b"]));
        let new = Ring::new(Placement::Ketama, &servers(&["a", "b", "c"]));
        let mut count = 0;
        for key in keys() {
            let (before, after) = (old.server_of(&key), new.server_of(&key));
            for from in 0..2 {
                assert_eq!(moved.moves(&key, from), after == 2 && before == from);
                assert_eq!(moved.has_left(&key, from), after != from);
            }
            count += usize::from(after == 2);
        }
        assert!((500..1500).contains(&count), "{count} of 3000 keys");
    }

    #[test]
    fn a_server_that_leaves_keeps_no_key() {
        let moved = moved(&["a", "b"], &["a"], "c").expect("rings");
        let old = Ring::new(Placement::Ketama, &servers(&["a", "b"]));
        let new = Ring::new(Placement::Ketama, &servers(&["b", "c"]));
        for key in keys() {
            let (before, after) = (old.server_of(&key), new.server_of(&key));
            assert_eq!(moved.moves(&key, 0), before == 0 && after == 1);
            assert_eq!(moved.moves(&key, 1), before == 1 && after == 1);
            assert!(moved.has_left(&key, 0));
            assert_eq!(moved.has_left(&key, 1), after == 1);
        }
    }

    #[test]
    fn ambiguous_rings_are_usage_errors() {
        for (from, leaving, to, part) in [
            (
                &["a", "b"][..],
                &[][..],
                "b",
                "b:11211 is in --from and in --to",
            ),
            (&["a", "a"], &[], "b", "a:11211 is in --from twice"),
            (&["a"], &["c"], "b", "c:11211 is in --leaving"),
        ] {
            let error = moved(from, leaving, to).err().expect(part);
            assert!(error.is::<UsageError>());
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
