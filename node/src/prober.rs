//! Measures links to other peers, rarely and small, and says when what is known has changed.

use crate::{links::Links, roster::Roster};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tsnode_protocol::{Link, PeerId};

/// Before the first round: a peer that has just joined has other things to do.
const FIRST: Duration = Duration::from_secs(3);
/// Between rounds.
const EVERY: Duration = Duration::from_secs(60);
/// Between two probes of a round.
const PAUSE: Duration = Duration::from_millis(200);

/// Probes every peer in turn until `stop`.
pub(crate) async fn run(
    me: PeerId,
    links: Links,
    roster: Roster,
    news: mpsc::Sender<Vec<Link>>,
    stop: CancellationToken,
) {
    let rounds = async {
        sleep(FIRST).await;
        loop {
            for (peer, addresses) in roster.others(me) {
                match links.probe(peer, &addresses).await {
                    Ok(link) => tracing::debug!(%peer, ?link, "link measured"),
                    Err(error) => tracing::debug!(%peer, %error, "link not measured"),
                }
                sleep(PAUSE).await;
            }
            if news.send(links.measured()).await.is_err() {
                return;
            }
            sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = rounds => {}
    }
}
