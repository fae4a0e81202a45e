//! [`ServerLoad`]: how long the slowest server takes for its share of the parameters, and which shares would make that shortest.
//!
//! All times are in units of what a healthy server takes that holds an equal share. A server that is slow all the time takes as much
//! longer for a byte as the monitor says; all others count as alike, because what they differ by is noise or will pass.
//!
//! With `n` servers, of which one takes `r` times as long for a byte, the best shares bring the slowest down from `r` to
//! `n / (n - 1 + 1/r)`.

use antdt_core::{ClusterView, NodeStatus, NodeView, Pace, ServerWeights, StragglerKind};

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct ServerLoad {
    /// Time per byte of each server, by index; at least 1.
    times: Vec<f64>,
    weights: ServerWeights,
}

impl ServerLoad {
    /// The load of the servers in a view; `None` unless all of them run.
    pub(super) fn of(view: &ClusterView) -> Option<Self> {
        let count = u32::try_from(view.servers.len()).ok().filter(|count| *count > 0)?;
        let mut times = vec![None; view.servers.len()];
        for server in view.servers.iter().filter(|server| server.status == NodeStatus::Running) {
            let lasts = server.pace == Pace::Straggler(StragglerKind::Persistent);
            let ratio = server.slowness_ratio.filter(|ratio| lasts && *ratio > 1.0).unwrap_or(1.0);
            *times.get_mut(server.id.index as usize)? = Some(ratio);
        }
        let times = times.into_iter().collect::<Option<Vec<f64>>>()?;
        view.server_weights.fits(count).then(|| Self { times, weights: view.server_weights.clone() })
    }

    /// Time of the slowest server as it is.
    pub(super) fn now(&self) -> f64 {
        self.with(&self.weights)
    }

    /// Time of the slowest server with these weights.
    pub(super) fn with(&self, weights: &ServerWeights) -> f64 {
        let servers = u32::try_from(self.times.len()).expect("a count that came from 32 bits");
        let time = |(server, time): (u32, &f64)| time * weights.share(server, servers) * f64::from(servers);
        (0..servers).zip(&self.times).map(time).fold(0.0, f64::max)
    }

    /// The weights with which the slowest server takes the shortest time.
    pub(super) fn best(&self) -> ServerWeights {
        let most = f64::from(ServerWeights::MOST);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 64")]
        let weight = |time: &f64| (most / time).round().clamp(1.0, most) as u32;
        let weights: Vec<u32> = self.times.iter().map(weight).collect();
        ServerWeights::new(&weights).expect("between 1 and the most")
    }

    /// The server that holds least, if it has less than others though no server is slow any more.
    pub(super) fn recovered<'a>(&self, view: &'a ClusterView, batches: u32) -> Option<&'a NodeView> {
        let weights = self.weights.uneven()?;
        // A server that has just started is no evidence.
        let is_healthy = |server: &NodeView| {
            matches!(server.pace, Pace::Normal | Pace::Leader)
                && server.estimate.is_some_and(|estimate| estimate.batches >= batches)
        };
        let weight = |server: &&NodeView| weights.get(server.id.index as usize).copied();
        let lightest = view.servers.iter().min_by_key(|server| (weight(server), server.id))?;
        view.servers.iter().all(is_healthy).then_some(lightest)
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Capabilities, NodeId};

    use super::*;
    use crate::testing::quiet_view;

    fn load(ratios: &[f64]) -> ServerLoad {
        let mut view = quiet_view(Capabilities::SERVERS_IN_STEP, &[1000; 2]);
        let server = |(index, ratio): (u32, &f64)| NodeView {
            id: NodeId::server(index),
            slowness_ratio: Some(*ratio),
            pace: if *ratio > 1.0 { Pace::Straggler(StragglerKind::Persistent) } else { Pace::Normal },
            ..view.workers[1].clone()
        };
        // In any order.
        view.servers = (0..).zip(ratios).map(server).collect();
        view.servers.reverse();
        ServerLoad::of(&view).unwrap()
    }

    #[test]
    fn the_best_shares_are_in_proportion_to_the_speeds() {
        for (ratios, best, before, after) in [
            (&[1.0, 1.0, 1.0, 3.0][..], "64,64,64,21", 3.0, 1.2),
            (&[10.0, 1.0], "6,64", 10.0, 20.0 / 11.0),
            (&[1.0, 2.0, 4.0], "64,32,16", 4.0, 12.0 / 7.0),
            (&[1.0, 1.0], "equal", 1.0, 1.0),
            (&[1.0, 1e9], "64,1", 1e9, 1e9 * 2.0 / 65.0),
        ] {
            let load = load(ratios);
            assert_eq!(load.best().to_string(), best, "{ratios:?}");
            assert!((load.now() / before - 1.0).abs() < 1e-9, "{ratios:?}: {}", load.now());
            // To a sixty-fourth of a share.
            let with = load.with(&load.best());
            assert!((with / after - 1.0).abs() < 0.05, "{ratios:?}: {with}");
        }
    }

    #[test]
    fn servers_that_do_not_all_run_have_no_load_to_even_out() {
        let mut view = quiet_view(Capabilities::SERVERS_IN_STEP, &[1000; 2]);
        assert!(ServerLoad::of(&view).is_none(), "there are none");
        let server = |index| NodeView { id: NodeId::server(index), ..view.workers[1].clone() };
        view.servers = vec![server(0), server(1)];
        assert!(ServerLoad::of(&view).is_some());
        view.server_weights = "1,2,3".parse().unwrap();
        assert!(ServerLoad::of(&view).is_none(), "weights of another number of servers");
        view.server_weights = ServerWeights::default();
        view.servers[1].status = NodeStatus::Pending;
        assert!(ServerLoad::of(&view).is_none());
    }
}
