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
/// Between two probes of a round, at least, and so much for each other peer of this host: the first probe of a link makes a connection,
/// and of all peers of one host together no more than fifty a second are to do so.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_SHARE: Duration = Duration::from_millis(20);
/// Between two words about links, at least, and so much more for each link, or for each who hears it where fewer are measured: everybody
/// hears of every one, so that of all peers together no more than five a second are said.
const WORD: Duration = Duration::from_secs(1);
const WORD_SHARE: Duration = Duration::from_millis(200);
/// How often what traffic shows is looked at between rounds.
const LOOK: Duration = Duration::from_secs(2);
/// A number that has moved by less than this part is no news after a round.
const NEWS: f64 = 0.05;
/// Between rounds, neither is what would hardly change a decision: everyone hears of it.
const SUDDEN: f64 = 0.3;
/// So is latency that has moved by less than threads are late (seconds).
const LATE: f64 = 0.5e-3;

/// Probes in turn all to whom the link counts, until `stop`.
pub(crate) async fn run(
    me: PeerId,
    links: Links,
    roster: Roster,
    news: mpsc::Sender<Vec<Link>>,
    stop: CancellationToken,
) {
    let rounds = Prober { links, news, measured: BTreeSet::new(), told: Told::default() };
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
    told: Told,
}

/// What was said of links, and when.
#[derive(Default)]
struct Told {
    links: Vec<Link>,
    at: Option<Instant>,
    /// There was news, too soon to say it.
    owes: bool,
    /// How many hear it for each that is measured from here.
    hearers: usize,
}

impl Told {
    /// When the next word may be said.
    fn free(&self) -> Option<Instant> {
        let hears = self.links.len().saturating_mul(self.hearers);
        let share = WORD_SHARE.saturating_mul(u32::try_from(hears).unwrap_or(u32::MAX));
        self.at.map(|at| at + WORD.max(share))
    }

    /// Whether this is to be said now.
    fn is_due(&mut self, now: Instant, links: &[Link], news: f64) -> bool {
        let news = if self.owes { NEWS } else { news };
        let is_news = is_news(&self.links, links, news);
        let is_free = self.free().is_none_or(|free| now >= free);
        self.owes = is_news && !is_free;
        is_news && is_free
    }
}

impl Prober {
    async fn run(mut self, me: PeerId, roster: Roster) {
        sleep(FIRST).await;
        let mut turns = self.links.turns();
        loop {
            turns.mark_unchanged();
            let (others, worth) = (roster.others(me), roster.worth_measuring(me));
            self.measured.retain(|peer| others.iter().any(|(other, _)| other == peer));
            let here = others.iter().filter(|(_, addresses)| addresses.iter().any(|at| at.ip().is_loopback())).count();
            let (mut wait, least) = (EVERY, pause(here));
            self.told.hearers = others.len().div_ceil(worth.len().max(1));
            let (measured, left_out): (Vec<_>, Vec<_>) = others.into_iter().partition(|(peer, _)| worth.contains(peer));
            for (peer, addresses) in measured {
                let began = Instant::now();
                let measured = self.probe(peer, &addresses).await;
                if measured.is_none() {
                    wait = AGAIN;
                }
                if !self.tell(NEWS).await {
                    return;
                }
                // What takes long has taken it from others, here or there.
                sleep(measured.map_or(least, |rest| rest.max(began.elapsed()).max(least))).await;
            }
            // A link that has taken another way is another link, and one that has lost its way is to find another.
            let rested = Instant::now();
            let mut until = rested + wait;
            while Instant::now() < until && timeout(self.look(), turns.changed()).await.is_err() {
                if !self.tell(SUDDEN).await {
                    return;
                }
                // Who lends from now on is planned with before long.
                let worth = roster.worth_measuring(me);
                if left_out.iter().any(|(peer, _)| worth.contains(peer)) {
                    until = until.min(rested + AGAIN);
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

    /// Until what is known is looked at again: what is owed is said as soon as it may be.
    fn look(&self) -> Duration {
        let free = self.told.free().filter(|_| self.told.owes);
        free.map_or(LOOK, |free| free.saturating_duration_since(Instant::now()).min(LOOK))
    }

    /// Says what is known now if it is news and not said too soon after the last word; false when nobody listens any more.
    async fn tell(&mut self, news: f64) -> bool {
        let (measured, now) = (self.links.measured(), Instant::now());
        let links: Vec<Link> = measured.into_iter().map(|measured| measured.link).collect();
        if !self.told.is_due(now, &links, news) {
            return !self.news.is_closed();
        }
        self.told = Told { links: links.clone(), at: Some(now), owes: false, hearers: self.told.hearers };
        self.news.send(links).await.is_ok()
    }
}

/// Between two probes of a round where so many others share this host.
fn pause(here: usize) -> Duration {
    PAUSE.max(PAUSE_SHARE.saturating_mul(u32::try_from(here).unwrap_or(u32::MAX)))
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

    fn link(to: u8, latency: f64, bandwidth: f64) -> Link {
        let (latency, bandwidth) = (Seconds(latency), BytesPerSecond(bandwidth));
        Link { to: PeerId([to; 32]), latency, bandwidth, path: PathKind::Direct }
    }

    #[test]
    fn words_about_links_are_as_seldom_as_there_are_many_and_none_is_lost() {
        let start = Instant::now();
        let links = |count: u8, bandwidth| (1..=count).map(|to| link(to, 0.01, bandwidth)).collect::<Vec<Link>>();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut told = Told::default();
        assert!(told.is_due(at(0.0), &links(40, 1e6), NEWS) && !told.owes, "the first is said at once");
        // Of forty others all are measured, or the four of them that lend.
        for (many, hearers) in [(40, 1), (4, 10)] {
            told = Told { links: links(many, 1e6), at: Some(at(0.0)), owes: false, hearers };
            assert!(!told.is_due(at(7.9), &links(many, 1.1e6), NEWS) && told.owes);
            assert!(told.is_due(at(8.0), &links(many, 1.1e6), SUDDEN), "what is owed is no news by a coarser measure");
        }
        told = Told { links: links(2, 1e6), at: Some(at(0.0)), owes: false, hearers: 1 };
        assert!(!told.is_due(at(0.9), &links(2, 2e6), NEWS) && told.is_due(at(1.0), &links(2, 2e6), NEWS));
        assert!(!told.is_due(at(1.0), &links(2, 1e6), NEWS) && !told.owes, "as it was said");
    }

    #[test]
    fn many_peers_of_one_host_probe_no_more_than_fifty_links_a_second() {
        assert_eq!([0, 10, 49].map(|here| pause(here).as_millis()), [200, 200, 980]);
    }

    #[test]
    fn what_has_hardly_moved_is_no_news() {
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
