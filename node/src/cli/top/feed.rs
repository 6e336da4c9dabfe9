//! Keeps what `tsnode top` knows up to date: the peer tells what changes, or is asked now and then where it cannot.

use super::snapshot::{Feed, RequestsView, Snapshot};
use crate::{
    cli::{
        ask::{PeerClient, unanswered},
        exit::{Exit, ExitKind},
    },
    view::{PeerView, SwarmView},
};
use serde::Deserialize;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tsnode_protocol::{Advert, GroupLoad, Link, Load, PeerId, PlanId};

/// How long a peer may take to begin.
const PATIENCE: Duration = Duration::from_secs(5);
/// A peer that says nothing for so long is asked whether it is there: where nobody does anything, it tells every five seconds what has
/// grown older.
const QUIET: Duration = Duration::from_secs(2);
/// How long it may take to say so.
const ASKED: Duration = Duration::from_secs(3);
/// Questions to a peer that has no place for another listener, until it is asked for one again.
const QUESTIONS: u32 = 30;
/// The longest event that is read (bytes): a thousand peers take a tenth of it.
const LONGEST: usize = 32 << 20;

/// Why there are no more events.
#[derive(Debug)]
enum Unheard {
    /// The peer answers, and tells none.
    Refused(String),
    /// It does not answer, or what it says is not understood.
    Lost(String),
}

/// Asks a peer for all that is shown.
pub(super) async fn ask(peer: &PeerClient) -> Result<(SwarmView, RequestsView), Exit> {
    Ok((peer.view().await?, peer.get("/api/requests").await?))
}

/// Until nobody looks any more: whoever starts it aborts it.
pub(super) async fn follow(peer: PeerClient, every: Duration, shown: watch::Sender<Snapshot>) {
    while !shown.is_closed() {
        let why = match listen(&peer, &shown).await {
            Unheard::Lost(why) => why,
            Unheard::Refused(why) => match poll(&peer, every, why, &shown).await {
                Ok(()) => continue,
                Err(exit) => exit.message,
            },
        };
        let why = in_short(&peer, &why);
        shown.send_modify(|snapshot| snapshot.feed = Feed::Lost { why });
        sleep(every).await;
    }
}

/// Takes in what the peer tells.
async fn listen(peer: &PeerClient, shown: &watch::Sender<Snapshot>) -> Unheard {
    let asked = timeout(PATIENCE, peer.send(peer.request("/api/events?changes"))).await;
    let mut response = match asked {
        Ok(Ok(response)) => response,
        Ok(Err(exit)) if exit.kind == ExitKind::Unreachable => return Unheard::Lost(exit.message),
        Ok(Err(exit)) => return Unheard::Refused(exit.message),
        Err(_) => return Unheard::Lost("no answer in time".into()),
    };
    let mut events = EventBytes::default();
    loop {
        let piece = match timeout(QUIET, response.chunk()).await {
            Ok(Ok(Some(piece))) => piece,
            Ok(Ok(None)) => return Unheard::Lost("it has ended".into()),
            Ok(Err(error)) => return Unheard::Lost(unanswered(&error)),
            Err(_) if is_there(peer).await => continue,
            Err(_) => return Unheard::Lost(format!("it says nothing for {} s", (QUIET + ASKED).as_secs())),
        };
        let taken = events.take(&piece).and_then(|told| told.iter().try_for_each(|event| take_in(event, shown)));
        if taken.is_none() {
            return Unheard::Lost("what it tells is not understood; is that a tsnode peer of this version?".into());
        }
    }
}

/// Whether a peer that is quiet answers when it is asked: a process that was stopped keeps its connections open.
async fn is_there(peer: &PeerClient) -> bool {
    timeout(ASKED, peer.request("/healthz").send()).await.is_ok_and(|asked| asked.is_ok())
}

/// What has changed of a swarm that was told before.
#[derive(Deserialize)]
struct Changes {
    swarm: SwarmView,
    peers: Vec<ChangedPeer>,
}

/// A peer whose advert is as it was, unless it is told, but for links that were measured anew.
#[derive(Deserialize)]
struct ChangedPeer {
    id: PeerId,
    advert: Option<Advert>,
    #[serde(default)]
    links: Vec<Link>,
    load: Load,
    groups: Vec<GroupLoad>,
    silent_for: f64,
    silent: bool,
    plan: Option<PlanId>,
    leaving: bool,
}

impl Changes {
    /// The swarm as it is now; none where something is missing.
    fn of(self, before: &SwarmView) -> Option<SwarmView> {
        let known = |id: PeerId| Some(before.peers.iter().find(|peer| peer.id == id)?.advert.clone());
        let whole = |told: ChangedPeer| {
            let ChangedPeer { id, advert, links, load, groups, silent_for, silent, plan, leaving } = told;
            let mut advert = advert.or_else(|| known(id))?;
            for link in links {
                *advert.links.iter_mut().find(|known| known.to == link.to)? = link;
            }
            Some(PeerView { id, advert, load, groups, silent_for, silent, plan, leaving })
        };
        let peers = self.peers.into_iter().map(whole).collect::<Option<_>>()?;
        Some(SwarmView { peers, ..self.swarm })
    }
}

/// None where an event is not understood.
fn take_in((name, data): &(String, String), shown: &watch::Sender<Snapshot>) -> Option<()> {
    match name.as_str() {
        "swarm" => {
            let view: SwarmView = serde_json::from_str(data).ok()?;
            shown.send_modify(|snapshot| {
                snapshot.see(view, Instant::now());
                is_live(snapshot);
            });
        }
        "changes" => {
            let changes: Changes = serde_json::from_str(data).ok()?;
            let view = changes.of(&shown.borrow().view)?;
            shown.send_modify(|snapshot| {
                snapshot.see(view, Instant::now());
                is_live(snapshot);
            });
        }
        "requests" => {
            let requests: RequestsView = serde_json::from_str(data).ok()?;
            shown.send_modify(|snapshot| {
                snapshot.take_in(requests);
                is_live(snapshot);
            });
        }
        // A later version may tell more.
        _ => {}
    }
    Some(())
}

fn is_live(snapshot: &mut Snapshot) {
    (snapshot.feed, snapshot.heard) = (Feed::Live, Instant::now());
}

/// Asks now and then, for a while.
async fn poll(peer: &PeerClient, every: Duration, why: String, shown: &watch::Sender<Snapshot>) -> Result<(), Exit> {
    let why = in_short(peer, &why);
    for _ in 0..QUESTIONS {
        let (view, requests) = ask(peer).await?;
        shown.send_modify(|snapshot| {
            snapshot.see(view, Instant::now());
            snapshot.take_in(requests);
            snapshot.feed = Feed::Polled { why: why.clone() };
        });
        sleep(every).await;
    }
    Ok(())
}

/// What a line has room for: where it is asked is known, and what to do about it is said by verbs that end.
fn in_short(peer: &PeerClient, why: &str) -> String {
    let why = why.strip_prefix(&format!("{}: ", peer.base())).unwrap_or(why);
    why.split("; ").next().unwrap_or(why).to_owned()
}

/// Server-sent events, as their bytes come.
#[derive(Default)]
struct EventBytes {
    line: Vec<u8>,
    name: String,
    data: String,
}

impl EventBytes {
    /// Those that are whole now, each by name; none where one is too long.
    fn take(&mut self, bytes: &[u8]) -> Option<Vec<(String, String)>> {
        let mut whole = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.line);
            whole.extend(self.read(&line));
        }
        self.line.extend_from_slice(rest);
        (self.line.len() + self.data.len() <= LONGEST).then_some(whole)
    }

    /// A line; an empty one ends an event.
    fn read(&mut self, line: &[u8]) -> Option<(String, String)> {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches('\r');
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            return (!data.is_empty()).then_some((name, data));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.name = value.to_owned(),
            "data" if self.data.is_empty() => self.data = value.to_owned(),
            "data" => self.data.extend(["\n", value]),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use serde_json::{Value, json};
    use tsnode_protocol::{BytesPerSecond, PathKind, Seconds};

    #[test]
    fn events_are_whole_however_they_come() {
        let text =
            "event: swarm\ndata: {\"a\":1}\n\n\n: awake\n\nevent:requests\r\ndata: x\r\ndata: y\r\n\r\ndata: z\n";
        let expected = [("swarm", "{\"a\":1}"), ("requests", "x\ny")].map(|(name, data)| (name.into(), data.into()));
        for size in [1, 3, 1000] {
            let mut events = EventBytes::default();
            let told: Vec<_> = text.as_bytes().chunks(size).flat_map(|piece| events.take(piece).unwrap()).collect();
            assert_eq!(told, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let mut events = EventBytes::default();
        let piece = vec![b'x'; 1 << 20];
        let taken = (0..100).take_while(|_| events.take(&piece).is_some()).count();
        assert_eq!(taken, LONGEST >> 20);
    }

    #[test]
    fn what_is_told_is_shown_and_what_is_not_understood_is_said() {
        let snapshot = Snapshot::new(view(), RequestsView::default(), Feed::Lost { why: "it has ended".into() });
        let shown = watch::Sender::new(snapshot);
        let tell = |name: &str, data: String| take_in(&(name.into(), data), &shown);
        let other = SwarmView { private: true, ..view() };
        assert!(tell("swarm", serde_json::to_string(&other).unwrap()).is_some());
        assert!(shown.borrow().view.private && shown.borrow().feed == Feed::Live);
        let running =
            json!({ "running": [{ "request": tsnode_protocol::RequestId([1; 16]), "model": "m", "seconds": 3 }] });
        assert!(tell("requests", running.to_string()).is_some());
        assert_eq!(shown.borrow().running.len(), 1);
        assert!(tell("news of a later version", "?".into()).is_some());
        assert!(tell("swarm", "{}".into()).is_none());
    }

    #[test]
    fn what_changes_is_told_without_adverts_that_are_known() {
        let [one, other] = [1, 2].map(|n| {
            json!({ "id": PeerId([n; 32]), "load": Load::default(), "groups": [],
            "silent_for": 0.5, "silent": false, "plan": null, "leaving": false })
        });
        let shown = watch::Sender::new(Snapshot::new(view(), RequestsView::default(), Feed::Live));
        let link = |latency: f64| Link {
            to: PeerId([2; 32]),
            latency: Seconds(latency),
            bandwidth: BytesPerSecond(1e9),
            path: PathKind::Direct,
        };
        let advert = Advert { links: vec![link(0.5)], ..tsnode_coordinator::sample::advert(0) };
        let tell = |peers: Value| {
            let changes = json!({ "swarm": view(), "peers": peers }).to_string();
            take_in(&("changes".into(), changes), &shown)
        };
        let mut with = one.clone();
        with["advert"] = serde_json::to_value(&advert).unwrap();
        assert!(tell(json!([with])).is_some() && tell(json!([one])).is_some());
        let shown_now = shown.borrow().view.peers.clone();
        assert!(shown_now.len() == 1 && shown_now[0].advert == advert, "{shown_now:?}");
        let mut measured = one.clone();
        measured["links"] = json!([link(0.25)]);
        assert!(tell(json!([measured])).is_some());
        assert_eq!(shown.borrow().view.peers[0].advert.links, [link(0.25)]);
        let mut stranger = one.clone();
        stranger["links"] = json!([Link { to: PeerId([9; 32]), ..link(0.25) }]);
        assert!(tell(json!([stranger])).is_none(), "a link that was not known");
        assert!(tell(json!([one, other])).is_none(), "of the other nothing was told");
    }
}
