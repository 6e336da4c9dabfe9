//! Measures links to other peers, rarely and small, and says when what is known has changed.

use crate::data_plane::{links::Links, roster::Roster};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tsnode_coordinator::links::pause_after;
use tsnode_protocol::{Link, PeerId};

/// Before the first round: a peer that has just joined has other things to do.
const FIRST: Duration = Duration::from_secs(3);
/// Between rounds.
const EVERY: Duration = Duration::from_secs(60);
/// After one in which a peer was not reached: it may be about to find a way.
const AGAIN: Duration = Duration::from_secs(10);
/// Between two probes of a round, at least.
const PAUSE: Duration = Duration::from_millis(200);
/// How often what traffic shows is looked at between rounds.
const LOOK: Duration = Duration::from_secs(2);
/// A number that has moved by less than this part is no news after a round.
const NEWS: f64 = 0.05;
/// Between rounds, neither is what would hardly change a decision: everyone hears of it.
const SUDDEN: f64 = 0.3;
/// So is latency that has moved by less than threads are late (seconds).
const LATE: f64 = 0.5e-3;

/// Probes every peer in turn until `stop`.
pub(crate) async fn run(
    me: PeerId,
    links: Links,
    roster: Roster,
    news: mpsc::Sender<Vec<Link>>,
    stop: CancellationToken,
) {
    let rounds = Prober { links, news, measured: BTreeSet::new(), told: Vec::new() };
    tokio::select! {
        () = stop.cancelled() => {}
        () = rounds.run(me, roster) => {}
    }
}

struct Prober {
    links: Links,
    news: mpsc::Sender<Vec<Link>>,
    /// Peers whose links have been measured at least once.
    measured: BTreeSet<PeerId>,
    /// What was last said.
    told: Vec<Link>,
}

impl Prober {
    async fn run(mut self, me: PeerId, roster: Roster) {
        sleep(FIRST).await;
        let mut turns = self.links.turns();
        loop {
            turns.mark_unchanged();
            let others = roster.others(me);
            self.measured.retain(|peer| others.iter().any(|(other, _)| other == peer));
            let mut wait = EVERY;
            for (peer, addresses) in others {
                let measured = self.probe(peer, &addresses).await;
                if measured.is_none() {
                    wait = AGAIN;
                }
                if !self.tell(NEWS).await {
                    return;
                }
                sleep(measured.unwrap_or(PAUSE).max(PAUSE)).await;
            }
            // A link that has taken another way is another link, and one that has lost its way is to find another.
            let until = Instant::now() + wait;
            while Instant::now() < until && timeout(LOOK, turns.changed()).await.is_err() {
                if !self.tell(SUDDEN).await {
                    return;
                }
            }
        }
    }

    /// Measures one link, if it can be; says how long to leave them alone then. What nothing is known of is not waited for.
    async fn probe(&mut self, peer: PeerId, addresses: &[SocketAddr]) -> Option<Duration> {
        match self.links.probe(peer, addresses).await {
            Ok(probed) => {
                tracing::debug!(%peer, ?probed, "link measured");
                let again = !self.measured.insert(peer);
                Some(if again { pause_after(probed.bytes, probed.link.bandwidth) } else { PAUSE })
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "link not measured");
                None
            }
        }
    }

    /// Says what is known now if it is news; false when nobody listens any more.
    async fn tell(&mut self, news: f64) -> bool {
        let now: Vec<Link> = self.links.measured().into_iter().map(|measured| measured.link).collect();
        if !is_news(&self.told, &now, news) {
            return !self.news.is_closed();
        }
        self.told.clone_from(&now);
        self.news.send(now).await.is_ok()
    }
}

/// Whether a link has come, gone, or changed by more than this part of it.
fn is_news(told: &[Link], now: &[Link], news: f64) -> bool {
    let moved = |a: f64, b: f64| (a - b).abs() > news * a.abs().max(b.abs());
    let changed = |(a, b): (&Link, &Link)| {
        a.to != b.to
            || a.path != b.path
            || moved(a.bandwidth.0, b.bandwidth.0)
            || moved(a.latency.0, b.latency.0) && (a.latency.0 - b.latency.0).abs() > LATE
    };
    told.len() != now.len() || told.iter().zip(now).any(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsnode_protocol::{BytesPerSecond, PathKind, Seconds};

    #[test]
    fn what_has_hardly_moved_is_no_news() {
        let link = |to, latency, bandwidth| Link {
            to: PeerId([to; 32]),
            latency: Seconds(latency),
            bandwidth: BytesPerSecond(bandwidth),
            path: PathKind::Direct,
        };
        let told = [link(1, 0.01, 1e6), link(2, 0.01, 1e6)];
        let news = |now: &[Link]| is_news(&told, now, NEWS);
        assert!(!news(&[link(1, 0.0102, 1e6), link(2, 0.01, 1.02e6)]));
        assert!(news(&[link(1, 0.01, 1e6), link(2, 0.02, 1e6)]));
        assert!(news(&[link(1, 0.01, 1e6), link(3, 0.01, 1e6)]));
        assert!(news(&told[..1]) && !is_news(&[], &[], NEWS));
        let faster = [link(1, 0.01, 1e6), link(2, 0.01, 1.2e6)];
        assert!(news(&faster) && !is_news(&told, &faster, SUDDEN));
    }
}
