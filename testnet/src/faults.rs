//! Breaks peers' networks: who does not reach whom, how slow, how wrong. Peers of a testnet let it (`--faults`).

use crate::{PeerInfo, Swarm, TestnetError};
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a peer may take to break itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to say what is broken.
const LOOK: Duration = Duration::from_secs(1);

/// Something that is broken at one peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flaw {
    /// Its links carry less, and later.
    Slow {
        /// What each carries (Mbit/s).
        mbit: Option<f64>,
        /// How much later everything leaves (milliseconds).
        ms: f64,
    },
    /// It answers wrongly.
    Lie {
        /// Part of the tokens it gives that are others than were chosen.
        tokens: f64,
        /// Part of the KV tiles it sends that hold something else than was computed.
        kv: f64,
    },
    /// Its advert says that it is faster than it was measured.
    Boast {
        /// How many times.
        times: f64,
    },
    /// Of the KV tiles it sends, this part has a bit flipped.
    Corrupt {
        /// From 0 to 1.
        part: f64,
    },
    /// It says to everybody what no honest peer says.
    Noise(Noise),
    /// What it computes with hangs, while everything else goes on.
    Wedged,
    /// Something stands in front of it.
    Walled {
        /// What.
        wall: Wall,
    },
}

/// What a liar says to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Noise {
    /// Bytes that are no message.
    Garbage,
    /// Far more messages than there are to say.
    Flood,
    /// Old messages, after most of a minute of silence about it.
    Replay,
    /// Different plans for one term.
    SecondPlan,
}

impl Noise {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("garbage", Self::Garbage),
        ("flood", Self::Flood),
        ("replay", Self::Replay),
        ("second-plan", Self::SecondPlan),
    ];
}

/// What stands in front of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wall {
    /// Nothing.
    None,
    /// An address translation: who was not called first does not get in.
    Nat,
    /// One that lets no UDP through either.
    Udp,
}

/// The network between some peers.
pub struct Network<'p> {
    peers: Vec<&'p PeerInfo>,
    client: reqwest::Client,
}

impl<'p> Network<'p> {
    /// Of these peers, all of which run.
    pub fn of(peers: impl IntoIterator<Item = &'p PeerInfo>) -> Self {
        Self { peers: peers.into_iter().collect(), client: crate::client::plain_http() }
    }

    /// Cuts every way between peers of the one side, by their names, and all others.
    ///
    /// # Errors
    /// When a name is no peer's, or a peer does not obey.
    pub async fn partition(&self, side: &[&str]) -> Result<(), TestnetError> {
        for name in side {
            self.find(name)?;
        }
        let here = |peer: &PeerInfo| side.contains(&peer.name.as_str());
        let sights = Swarm::of(self.peers.iter().copied()).look().await;
        for peer in &self.peers {
            let far = self.peers.iter().zip(&sights).filter(|(other, _)| here(other) != here(peer));
            let cut = far.filter_map(|(_, sight)| {
                let own = sight.as_ref()?.peers.iter().find(|p| Some(&p.id) == sight.as_ref().map(|s| &s.me))?;
                Some((own.id.clone(), json!(own.advert.data_addresses)))
            });
            let cut: serde_json::Map<String, Value> = cut.collect();
            self.change(peer, |faults| faults["cut"] = Value::Object(cut)).await?;
        }
        Ok(())
    }

    /// Has the link between two peers, by their names, carry less and later in both directions, and no other.
    ///
    /// # Errors
    /// When a name is no peer's, both are one, or a peer does not obey.
    pub async fn slow_link(&self, ends: [&str; 2], mbit: Option<f64>, ms: f64) -> Result<(), TestnetError> {
        let [one, other] = [self.find(ends[0])?, self.find(ends[1])?];
        if one.name == other.name {
            return Err(disobeyed(one, "a link has two ends, and this is one peer".into()));
        }
        let sights = Swarm::of([one, other].into_iter()).look().await;
        let own = |at: usize| {
            let sight = sights.get(at)?.as_ref()?;
            let own = sight.peers.iter().find(|peer| peer.id == sight.me)?;
            Some((own.id.clone(), json!({ "addresses": own.advert.data_addresses, "mbit": mbit, "ms": ms })))
        };
        for (peer, far) in [(one, own(1)), (other, own(0))] {
            let (id, link) = far.ok_or_else(|| disobeyed(peer, "the link's other end does not answer".into()))?;
            self.change(peer, |faults| {
                if faults["slow"].is_null() {
                    faults["slow"] = json!({});
                }
                faults["slow"][&id] = link;
            })
            .await?;
        }
        Ok(())
    }

    /// What is broken at each of the peers, in their order, as they say it themselves; nothing of one that does not answer.
    pub async fn broken(&self) -> Vec<Option<Value>> {
        let asked = self.peers.iter().map(|peer| {
            let asked = peer.authorised(self.client.get(path(peer))).timeout(LOOK).send();
            async move { asked.await.ok()?.error_for_status().ok()?.json::<Value>().await.ok() }
        });
        futures::future::join_all(asked).await
    }

    /// Mends everything everywhere.
    ///
    /// # Errors
    /// When a peer does not obey.
    pub async fn heal(&self) -> Result<(), TestnetError> {
        for peer in &self.peers {
            self.set(peer, &json!({})).await?;
        }
        Ok(())
    }

    /// Breaks one peer, by its name.
    ///
    /// # Errors
    /// When there is no such peer, or it does not obey.
    pub async fn spoil(&self, name: &str, flaw: Flaw) -> Result<(), TestnetError> {
        let peer = self.find(name)?;
        self.change(peer, |faults| match flaw {
            Flaw::Slow { mbit, ms } => (faults["mbit"], faults["ms"]) = (json!(mbit), json!(ms)),
            Flaw::Lie { tokens, kv } => (faults["lie"], faults["false_kv"]) = (json!(tokens), json!(kv)),
            Flaw::Boast { times } => faults["boast"] = json!(times),
            Flaw::Wedged => faults["wedge"] = json!(true),
            Flaw::Corrupt { part } => faults["corrupt"] = json!(part),
            Flaw::Noise(noise) => faults["noise"] = json!(noise),
            Flaw::Walled { wall } => {
                faults["wall"] = json!(match wall {
                    Wall::None => "none",
                    Wall::Nat => "nat",
                    Wall::Udp => "udp",
                });
            }
        })
        .await
    }

    fn find(&self, name: &str) -> Result<&'p PeerInfo, TestnetError> {
        let names = || self.peers.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.peers.iter().find(|p| p.name == name);
        found.copied().ok_or_else(|| TestnetError::NoPeer { name: name.to_owned(), names: names() })
    }

    /// What is broken already stays so.
    async fn change(&self, peer: &PeerInfo, change: impl FnOnce(&mut Value)) -> Result<(), TestnetError> {
        let asked = peer.authorised(self.client.get(path(peer))).timeout(PATIENCE).send().await;
        let mut faults: Value = match asked.and_then(reqwest::Response::error_for_status) {
            Ok(response) => response.json().await.map_err(|e| disobeyed(peer, e.to_string()))?,
            Err(error) => return Err(disobeyed(peer, error.to_string())),
        };
        change(&mut faults);
        self.set(peer, &faults).await
    }

    async fn set(&self, peer: &PeerInfo, faults: &Value) -> Result<(), TestnetError> {
        let asked = peer.authorised(self.client.post(path(peer)).json(faults)).timeout(PATIENCE).send().await;
        let response = asked.map_err(|e| disobeyed(peer, e.to_string()))?;
        if response.status().is_success() {
            return Ok(());
        }
        let body: Value = response.json().await.unwrap_or_default();
        Err(disobeyed(peer, body["error"]["message"].as_str().unwrap_or("no reason given").to_owned()))
    }
}

fn path(peer: &PeerInfo) -> String {
    format!("{}/api/faults", peer.http)
}

fn disobeyed(peer: &PeerInfo, why: String) -> TestnetError {
    TestnetError::NotBroken { name: peer.name.clone(), why }
}
