//! Stories of the control plane, told by a simulated network that delays, loses, repeats, reorders, cuts and heals.
//!
//! Peers run the shipped state machine; messages are really signed and verified. One seed replays a story.
#![allow(clippy::unwrap_used)] // A story that cannot be told fails.

use ed25519_dalek::SigningKey;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;
use tsnode_coordinator::control::{Action, Control, ControlConfig, Event, Reject};
use tsnode_protocol::{
    Advert, BytesPerSecond, Device, DeviceKind, Epoch, FlopsPerSecond, Gossip, Load, ModelCard, ModelId, ModelShape,
    PeerId, Phase, Plan, PlanId, Signed, SwarmId, Term, gossip::Certificate,
};

const SWARM: SwarmId = SwarmId([7; 16]);
const UNIX: Duration = Duration::from_secs(1_800_000_000);

fn card() -> ModelCard {
    let shape = ModelShape {
        layers: 4,
        hidden: 256,
        intermediate: 512,
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        vocab: 4096,
        context: 1024,
        layer_bytes: 1 << 20,
        embed_bytes: 2 << 20,
        head_bytes: 2 << 20,
    };
    ModelCard { id: ModelId([1; 16]), name: "tiny".into(), shape, files: vec![] }
}

fn advert(n: usize) -> Advert {
    let device = Device {
        kind: DeviceKind::Cpu { threads: 1 },
        name: "cpu".into(),
        memory_bytes: 1 << 30,
        kv_bytes: 1 << 28,
        flops: FlopsPerSecond(20e9 + n as f64 * 1e9),
        bandwidth: BytesPerSecond(10e9),
        profile: None,
    };
    Advert {
        name: format!("peer{n}"),
        version: "0".into(),
        addresses: vec![],
        data_addresses: vec![],
        devices: vec![device],
        models: vec![card()],
        links: vec![],
        reachable: true,
    }
}

/// Pseudo-random numbers of a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

struct Peer {
    key: SigningKey,
    control: Control,
    sequence: u64,
    alive: bool,
    side: u8,
    endorsed: Option<(Epoch, Term)>,
    adopted: Vec<Plan>,
    rejected: Vec<Reject>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    at: Duration,
    order: u64,
    to: usize,
    message: usize,
}

/// A swarm and the network between its peers.
struct World {
    now: Duration,
    peers: Vec<Peer>,
    on_the_way: BinaryHeap<Reverse<Arrival>>,
    messages: Vec<Signed<Gossip>>,
    dice: Dice,
    /// Percent of messages lost, and repeated.
    lossy: u64,
    order: u64,
    bytes: u64,
    /// Every plan adopted by (epoch, term) and side of the network, with the peers it names.
    plans: BTreeMap<(Epoch, Term, u8), BTreeMap<PlanId, BTreeSet<PeerId>>>,
}

impl World {
    fn new(peers: usize, seed: u64) -> Self {
        let mut world = Self {
            now: Duration::from_millis(1),
            peers: Vec::new(),
            on_the_way: BinaryHeap::new(),
            messages: Vec::new(),
            dice: Dice(seed),
            lossy: 0,
            order: 0,
            bytes: 0,
            plans: BTreeMap::new(),
        };
        for n in 0..peers {
            world.join(n as u8 + 1, advert(n));
        }
        world
    }

    fn join(&mut self, seed: u8, advert: Advert) {
        let key = SigningKey::from_bytes(&[seed; 32]);
        let control = self.machine(&key, None);
        self.peers.push(Peer {
            key,
            control,
            sequence: 1,
            alive: true,
            side: 0,
            endorsed: None,
            adopted: vec![],
            rejected: vec![],
        });
        self.tell(self.peers.len() - 1, Event::Advertise(advert));
    }

    fn machine(&self, key: &SigningKey, endorsed: Option<(Epoch, Term)>) -> Control {
        let me = PeerId(key.verifying_key().to_bytes());
        let config = ControlConfig { endorsed, ..ControlConfig::new(me, SWARM) };
        Control::new(config, self.now, UNIX + self.now)
    }

    fn id(&self, n: usize) -> PeerId {
        PeerId(self.peers[n].key.verifying_key().to_bytes())
    }

    fn tell(&mut self, n: usize, event: Event) {
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.peers[n].control.on_event(self.now, event) {
                match action {
                    Action::Publish(gossip) => {
                        let signed = self.sign(n, &gossip);
                        self.send(n, signed.clone());
                        events.push_back(Event::Gossip(signed.verify(SWARM).unwrap()));
                    }
                    Action::Adopt(plan) => {
                        let at = (plan.epoch, plan.term, self.peers[n].side);
                        self.plans.entry(at).or_default().insert(plan.id(), plan.peers());
                        self.peers[n].adopted.push(plan);
                    }
                    Action::Remember(epoch, term) => self.peers[n].endorsed = Some((epoch, term)),
                    Action::Reject { reason, .. } => self.peers[n].rejected.push(reason),
                    _ => {}
                }
            }
        }
    }

    fn sign(&mut self, n: usize, gossip: &Gossip) -> Signed<Gossip> {
        let peer = &mut self.peers[n];
        peer.sequence += 1;
        Signed::seal(&peer.key, SWARM, peer.sequence, gossip)
    }

    /// A peer says something its machine did not decide.
    fn say(&mut self, n: usize, gossip: &Gossip) {
        let signed = self.sign(n, gossip);
        self.send(n, signed.clone());
        self.tell(n, Event::Gossip(signed.verify(SWARM).unwrap()));
    }

    fn send(&mut self, from: usize, message: Signed<Gossip>) {
        self.bytes += message.to_bytes().len() as u64;
        self.messages.push(message);
        let message = self.messages.len() - 1;
        for to in (0..self.peers.len()).filter(|to| *to != from) {
            if self.peers[to].side != self.peers[from].side || self.dice.chance(self.lossy) {
                continue;
            }
            for _ in 0..1 + u64::from(self.dice.chance(self.lossy)) {
                let late = Duration::from_millis(1 + self.dice.roll(if self.lossy > 0 { 400 } else { 20 }));
                self.order += 1;
                self.on_the_way.push(Reverse(Arrival { at: self.now + late, order: self.order, to, message }));
            }
        }
    }

    /// Lets time pass.
    fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            let arrival = self.on_the_way.peek().map(|Reverse(a)| a.at);
            let wakes = self.peers.iter().filter(|p| p.alive).filter_map(|p| p.control.deadline());
            let next = arrival.into_iter().chain(wakes).min().map_or(end, |at| at.max(self.now));
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            if arrival == Some(next) {
                let Some(Reverse(a)) = self.on_the_way.pop() else { return };
                if self.peers[a.to].alive {
                    let verified = self.messages[a.message].clone().verify(SWARM).unwrap();
                    self.tell(a.to, Event::Gossip(verified));
                }
                continue;
            }
            for n in 0..self.peers.len() {
                if self.peers[n].alive && self.peers[n].control.deadline().is_some_and(|at| at <= self.now) {
                    self.tell(n, Event::Deadline);
                }
            }
        }
    }

    fn crash(&mut self, n: usize) {
        self.peers[n].alive = false;
    }

    fn restart(&mut self, n: usize) {
        let control = self.machine(&self.peers[n].key.clone(), self.peers[n].endorsed);
        let peer = &mut self.peers[n];
        (peer.control, peer.alive) = (control, true);
        peer.adopted.clear();
        // A restarted node goes on above its old sequences: they start from the wall clock.
        peer.sequence += 1_000_000;
        self.tell(n, Event::Advertise(advert(n)));
    }

    fn alive(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|p| p.alive)
    }

    /// The plan all living peers follow.
    fn common_plan(&self) -> Result<Plan, String> {
        let mut plans = self.alive().map(|p| p.control.plan());
        let first = plans.next().flatten().ok_or("a peer has no plan")?;
        if plans.any(|p| p != Some(first)) {
            return Err("two peers follow different plans".into());
        }
        Ok(first.clone())
    }

    fn serves_the_living(&self) -> Result<(), String> {
        let plan = self.common_plan()?;
        let living: BTreeSet<PeerId> =
            (0..self.peers.len()).filter(|n| self.peers[*n].alive).map(|n| self.id(n)).collect();
        if plan.peers() == living { Ok(()) } else { Err("the plan names others than the living".into()) }
    }

    /// Nobody follows two plans of one (epoch, term), and no two such plans were endorsed by a majority of the same
    /// peers: only peers that have not heard of each other follow different ones.
    fn plans_are_safe(&self) {
        for (at, plans) in &self.plans {
            for (a, b) in plans.values().zip(plans.values().skip(1)) {
                let union = a.union(b).count();
                assert!(2 * union > a.len() + b.len(), "{at:?}: {plans:?}");
            }
        }
        for peer in &self.peers {
            let terms: Vec<_> = peer.adopted.iter().map(|p| (p.epoch, p.term)).collect();
            assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
        }
    }

    /// Where no message is lost there is one plan for an epoch and term.
    fn one_plan_a_term(&self) {
        for (at, plans) in &self.plans {
            assert!(plans.len() <= 1, "{at:?}: {plans:?}");
        }
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_swarm_comes_to_one_plan_that_uses_everybody() {
    let mut world = World::new(4, 1);
    world.wait(seconds(4));
    let plan = world.common_plan().unwrap();
    assert_eq!(plan.peers().len(), 4);
    let busy = |id| plan.routes.iter().any(|r| r.share > 0.0 && (r.prefill == id || r.decode == id));
    assert!(plan.groups.iter().all(|g| busy(g.id)), "a group without work");
    let share: f64 = plan.routes.iter().map(|r| r.share).sum();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    world.one_plan_a_term();
}

#[test]
fn one_peer_alone_does_both() {
    let mut world = World::new(1, 1);
    world.wait(seconds(5));
    let plan = world.common_plan().unwrap();
    assert_eq!(plan.groups[0].phase, Phase::Mixed);
}

#[test]
fn what_stands_after_a_loss_stays() {
    let mut world = World::new(5, 3);
    world.wait(seconds(4));
    let before = world.common_plan().unwrap();
    world.crash(1);
    world.wait(seconds(6));
    world.serves_the_living().unwrap();
    let after = world.common_plan().unwrap();
    assert_ne!(before.id(), after.id());
    let stood = |stages: &[tsnode_protocol::Stage]| before.groups.iter().any(|g| g.stages == stages);
    assert!(after.groups.iter().all(|g| stood(&g.stages)), "weights moved without need: {after:?}");
    assert_eq!(after.groups.len(), before.groups.len() - 1);
}

#[test]
fn a_silent_peer_loses_its_work_and_comes_back_once() {
    let mut world = World::new(4, 2);
    world.wait(seconds(4));
    world.crash(2);
    world.wait(seconds(6));
    world.serves_the_living().unwrap();
    world.restart(2);
    world.wait(seconds(6));
    world.serves_the_living().unwrap();
    world.one_plan_a_term();
}

#[test]
fn the_coordinator_dies_and_the_next_takes_over() {
    let mut world = World::new(5, 3);
    world.wait(seconds(4));
    let coordinator = world.peers[0].control.coordinator().unwrap();
    let n = (0..5).find(|n| world.id(*n) == coordinator).unwrap();
    world.crash(n);
    world.wait(seconds(8));
    world.serves_the_living().unwrap();
    let next: BTreeSet<_> = world.alive().map(|p| p.control.coordinator()).collect();
    assert!(next.len() == 1 && !next.contains(&Some(coordinator)));
}

#[test]
fn who_comes_late_follows_the_plan_in_force() {
    // A gateway: no device, so no new plan is needed for it. Of many, one that ranks first as soon as it is heard of,
    // when it has no certificate to show yet.
    let joined = |key: u8| {
        let mut world = World::new(3, 4);
        world.wait(seconds(4));
        world.join(key, Advert { devices: vec![], models: vec![], ..advert(9) });
        world.wait(seconds(1));
        world
    };
    let first = |world: &World| world.peers[0].control.coordinator() == Some(world.id(3));
    let mut world = (90..130).map(joined).find(first).unwrap();
    world.wait(seconds(2));
    assert_eq!(world.common_plan().unwrap().peers().len(), 3);
}

#[test]
fn a_replayed_message_is_refused_and_counted() {
    let mut world = World::new(2, 5);
    world.wait(seconds(4));
    let old =
        world.messages.iter().find(|m| (*m).clone().verify(SWARM).unwrap().signer() == world.id(0)).unwrap().clone();
    world.peers[1].rejected.clear();
    world.tell(1, Event::Gossip(old.verify(SWARM).unwrap()));
    assert_eq!(world.peers[1].rejected, [Reject::Replay]);
}

#[test]
fn a_plan_out_of_turn_is_not_endorsed_and_a_false_certificate_convinces_nobody() {
    let mut world = World::new(4, 6);
    world.wait(seconds(4));
    let before = world.common_plan().unwrap();
    let coordinator = world.peers[0].control.coordinator().unwrap();
    let liar = (0..4).find(|n| world.id(*n) != coordinator).unwrap();
    let plan = Plan { term: Term(before.term.0 + 1), reason: "mine".into(), ..before.clone() };
    let signed = world.sign(liar, &Gossip::Plan(plan));
    let certificate = Gossip::Certificate(Certificate { plan: signed.clone(), endorsements: vec![] });
    world.send(liar, signed);
    let signed = world.sign(liar, &certificate);
    world.send(liar, signed);
    world.wait(seconds(6));
    assert_eq!(world.common_plan().unwrap(), before);
    let rejected: Vec<&Reject> = world.peers.iter().flat_map(|p| &p.rejected).collect();
    assert!(rejected.contains(&&Reject::NotCoordinator) && rejected.contains(&&Reject::BadCertificate), "{rejected:?}");
}

#[test]
fn a_second_plan_for_a_term_is_refused() {
    let mut world = World::new(3, 7);
    world.wait(seconds(4));
    let before = world.common_plan().unwrap();
    let coordinator = world.peers[0].control.coordinator().unwrap();
    let n = (0..3).find(|n| world.id(*n) == coordinator).unwrap();
    let term = Term(before.term.0 + 1);
    for reason in ["one", "two"] {
        let plan = Plan { term, reason: reason.into(), ..before.clone() };
        world.say(n, &Gossip::Plan(plan));
        world.wait(seconds(1));
    }
    assert_eq!(world.common_plan().unwrap().reason, "one");
    world.one_plan_a_term();
}

#[test]
fn both_sides_of_a_partition_go_on_and_agree_when_they_meet() {
    let mut world = World::new(6, 8);
    world.wait(seconds(4));
    for n in 0..3 {
        world.peers[n].side = 1;
    }
    world.wait(seconds(8));
    for side in [0, 1] {
        let mut plans = world.peers.iter().filter(|p| p.side == side).map(|p| p.control.plan().unwrap());
        let first = plans.next().unwrap();
        assert_eq!(first.peers().len(), 3);
        assert!(plans.all(|p| p == first));
    }
    world.peers.iter_mut().for_each(|p| p.side = 0);
    world.wait(seconds(10));
    world.serves_the_living().unwrap();
}

/// First faults of every kind at random moments, then quiet: safety always, liveness after.
///
/// `TSNODE_SEEDS=3000` tells more stories.
#[test]
fn whatever_happens_connected_peers_agree_soon_after_it_stops() {
    let seeds = std::env::var("TSNODE_SEEDS").map_or(40, |n| n.parse().unwrap());
    for seed in 0..seeds {
        let mut world = World::new(3 + (seed % 5) as usize, seed);
        world.lossy = 10;
        let count = world.peers.len() as u64;
        for _ in 0..12 {
            let n = world.dice.roll(count) as usize;
            match world.dice.roll(4) {
                0 if world.alive().count() > 2 => world.crash(n),
                1 if !world.peers[n].alive => world.restart(n),
                2 => world.tell(n, Event::Disconnected(world.id(0))),
                _ => world.tell(n, Event::Load { load: Load::default(), ready: vec![] }),
            }
            let span = Duration::from_millis(200 + world.dice.roll(2500));
            world.wait(span);
            world.plans_are_safe();
        }
        world.lossy = 0;
        world.wait(seconds(20));
        world.plans_are_safe();
        world.serves_the_living().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn gossip_grows_with_the_swarm_and_no_faster() {
    let mut world = World::new(24, 9);
    world.wait(seconds(10));
    world.serves_the_living().unwrap();
    world.bytes = 0;
    world.wait(seconds(10));
    let rate = world.bytes as f64 / 10.0 / 24.0;
    println!("{rate:.0} bytes of gossip by each of 24 idle peers a second");
    assert!(rate < 400.0, "{rate} bytes a second");
}
