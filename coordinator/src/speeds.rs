//! Whether work comes as fast as the adverts of those who do it claim.
//!
//! Everybody is slower than a measurement on an idle host: the host has other work, the network takes its time, batches
//! are shared. So a leader's times are not held against its claim alone but against how far others of its kind are off
//! theirs: who is many times further off than their median has claimed too much. Of each leader the best of its last
//! works counts, so that a busy moment is no lie.

use crate::{gateway::View, trust::Offence};
use std::collections::{BTreeMap, VecDeque};
use tsnode_protocol::{Group, GroupId, PeerId, Phase};

/// Works of a leader that are looked at: the last ones, and no fewer.
const WORKS: usize = 8;
/// Others of its kind that must be known as well.
const OTHERS: usize = 2;
/// So many times further off than the others loses nothing: hosts differ in what else they do.
const TOLERATED: f64 = 4.0;
/// So many times further off is a false claim, each time.
const CONTRADICTED: f64 = 16.0;
/// The least weight: what is never asked cannot show that it has become faster.
const LEAST: f64 = 1.0 / 16.0;
/// Groups remembered.
const GROUPS: usize = 4096;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// A prompt's tokens, up to the first of the answer.
    Prompt {
        /// Those that were computed.
        tokens: u32,
    },
    /// Tokens of an answer, after its first.
    Answer {
        /// How many.
        tokens: u32,
        /// Tokens before them, in the middle of the answer.
        context: u32,
    },
}

impl Work {
    /// Shorter ones say more of the network than of who does them.
    fn is_long_enough(self) -> bool {
        match self {
            Self::Prompt { tokens } => tokens >= 16,
            Self::Answer { tokens, .. } => tokens >= 8,
        }
    }

    fn phase(self) -> Phase {
        match self {
            Self::Prompt { .. } => Phase::Prefill,
            Self::Answer { .. } => Phase::Decode,
        }
    }

    /// What a group takes for it by its peers' adverts (s); nothing where one of them claims nothing.
    pub(crate) fn claimed(self, view: &View, group: &Group) -> Option<f64> {
        let mut seconds = 0.0;
        for stage in &group.stages {
            let device = view.adverts.get(&stage.peer)?.devices.get(usize::from(stage.device))?;
            let profile = device.profile.filter(|p| p.model == group.model)?;
            let layer = match self {
                Self::Prompt { tokens } => {
                    let ([a, b, c], n) = (profile.prefill, f64::from(tokens));
                    a + b * n + c * n * n
                }
                Self::Answer { tokens, context } => {
                    let [a, b, c] = profile.decode;
                    (a + b * f64::from(context) + c) * f64::from(tokens)
                }
            };
            seconds += layer * f64::from(stage.layers.len());
        }
        (seconds > 0.0 && seconds.is_finite()).then_some(seconds)
    }
}

/// A group, and what it was seen doing: its leader answers for it.
#[derive(Clone, Debug)]
struct Record {
    leader: PeerId,
    /// Stages: hand-overs between them take their time.
    stages: usize,
    /// Times it took over those that were claimed, the last ones.
    off: VecDeque<f64>,
}

impl Record {
    /// How far it is off at its best; nothing while little is known.
    fn best(&self) -> Option<f64> {
        (self.off.len() >= WORKS).then(|| self.off.iter().copied().fold(f64::INFINITY, f64::min))
    }
}

/// Speeds as one gateway sees them.
#[derive(Debug, Default)]
pub struct Speeds {
    records: BTreeMap<(GroupId, Phase), Record>,
}

impl Speeds {
    /// A group took `seconds` for some work. Says what its leader is to blame for, if it is.
    pub fn saw(&mut self, view: &View, group: &Group, work: Work, seconds: f64) -> Option<(PeerId, Offence)> {
        let (leader, claimed) = (group.leader()?, work.claimed(view, group).filter(|_| work.is_long_enough())?);
        if self.records.len() >= GROUPS {
            let plan = view.plan.as_deref();
            self.records.retain(|(id, _), _| plan.is_some_and(|p| p.group(*id).is_some()));
        }
        let key = (group.id, work.phase());
        let new = || Record { leader, stages: group.stages.len(), off: VecDeque::new() };
        let record = self.records.entry(key).or_insert_with(new);
        if record.off.len() == WORKS {
            record.off.pop_front();
        }
        record.off.push_back((seconds / claimed).max(f64::MIN_POSITIVE));
        let times = self.beside_others(key)?;
        // Which stage of several is slow cannot be told from outside; such a group loses weight, and nobody is blamed.
        let is_false = times >= CONTRADICTED && group.stages.len() == 1;
        is_false.then(|| (leader, Offence::FalseSpeed { times: times.min(f64::from(u32::MAX)) as u32 }))
    }

    /// How many times further a group is off its claims than the median of other leaders' of its kind.
    fn beside_others(&self, key: (GroupId, Phase)) -> Option<f64> {
        let record = self.records.get(&key)?;
        let is_like = |other: &Record| other.leader != record.leader && other.stages == record.stages;
        let like = self.records.iter().filter(|((_, phase), other)| *phase == key.1 && is_like(other));
        let mut others: Vec<f64> = like.filter_map(|(_, other)| other.best()).collect();
        if others.len() < OTHERS {
            return None;
        }
        others.sort_by(f64::total_cmp);
        // The upper one of two in the middle: in doubt for whom it is about.
        Some(record.best()? / others[others.len() / 2])
    }

    /// What a group's share of requests is multiplied with, by halves so that it changes rarely.
    #[must_use]
    pub fn weight(&self, group: GroupId, phase: Phase) -> f64 {
        let times = self.beside_others((group, phase)).unwrap_or(1.0);
        if times <= TOLERATED { 1.0 } else { (TOLERATED / times).log2().floor().exp2().max(LEAST) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A view without its groups fails the test.
    use super::*;
    use std::sync::Arc;
    use tsnode_protocol::{
        Advert, BytesPerSecond, Device, DeviceKind, Epoch, FlopsPerSecond, LayerProfile, LayerRange, Misfit, ModelId,
        Plan, Stage, Term,
    };

    const MODEL: ModelId = ModelId([1; 16]);
    const WORK: Work = Work::Answer { tokens: 100, context: 50 };

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// One decode group a peer; each claims a millisecond a token, over what it boasts.
    fn view(boasts: &[f64]) -> View {
        let misfit = Misfit { r2: 1.0, mean: 0.0, largest: 0.0 };
        let advert = |boast: f64| Advert {
            name: String::new(),
            version: String::new(),
            addresses: vec![],
            data_addresses: vec![],
            devices: vec![Device {
                name: "cpu".into(),
                kind: DeviceKind::Cpu { threads: 1 },
                memory_bytes: 1 << 30,
                kv_bytes: 1 << 20,
                flops: FlopsPerSecond(1e9),
                bandwidth: BytesPerSecond(1e9),
                profile: Some(LayerProfile {
                    model: MODEL,
                    prefill: [1e-3 / boast; 3],
                    decode: [0.25e-3 / boast, 0.0, 0.0],
                    prompts: misfit,
                    steps: misfit,
                    mixed: misfit,
                }),
            }],
            models: vec![],
            links: vec![],
            reachable: true,
            invites: vec![],
            traffic: vec![],
        };
        let adverts = (1..).map(peer).zip(boasts.iter().map(|b| advert(*b))).collect();
        let stage = |n: usize| Stage { peer: peer(n as u8), device: 0, layers: LayerRange { start: 0, end: 4 } };
        let groups = (1..=boasts.len()).map(|n| Group::new(MODEL, Phase::Decode, vec![stage(n)])).collect();
        let plan = Plan { epoch: Epoch(0), term: Term(0), parent: None, groups, routes: vec![], reason: String::new() };
        View { plan: Some(Arc::new(plan)), adverts: Arc::new(adverts), ..View::default() }
    }

    /// Everybody answers in turn, `took` seconds each; who is blamed in which round.
    fn blamed(boasts: &[f64], took: impl Fn(usize, usize) -> f64) -> (Speeds, Vec<(usize, PeerId)>) {
        let (view, mut speeds, mut blamed) = (view(boasts), Speeds::default(), Vec::new());
        for round in 0..40 {
            for (n, group) in view.plan.as_ref().unwrap().groups.iter().enumerate() {
                let said = speeds.saw(&view, group, WORK, took(round, n));
                blamed.extend(said.map(|(peer, _)| (round, peer)));
            }
        }
        (speeds, blamed)
    }

    #[test]
    fn who_claims_far_more_than_others_keep_is_blamed_once_enough_is_known() {
        let (_, found) = blamed(&[1.0, 100.0, 1.0], |_, _| 0.5);
        assert_eq!(found.first(), Some(&(8, peer(2))), "in the answer after the others' eighth");
        assert!(found.len() == 32 && found.iter().all(|(_, who)| *who == peer(2)));
    }

    #[test]
    fn busy_hosts_and_busy_moments_are_no_lies() {
        // Everybody is five times slower than measured, one four times slower than that, and every other answer stands still.
        let took = |round: usize, n: usize| if round.is_multiple_of(2) { 60.0 } else { [0.5, 2.0, 0.6, 0.4][n] };
        let (speeds, found) = blamed(&[1.0; 4], took);
        assert_eq!(found, []);
        let groups = view(&[1.0; 4]).plan.unwrap().groups.clone();
        assert!(groups.iter().all(|g| speeds.weight(g.id, Phase::Decode) == 1.0));
    }

    #[test]
    fn who_claims_too_much_loses_weight_by_halves() {
        let (speeds, found) = blamed(&[1.0, 1.0, 9.0], |_, _| 0.5);
        assert_eq!(found, []);
        let groups = view(&[1.0; 3]).plan.unwrap().groups.clone();
        let weights: Vec<f64> = groups.iter().map(|g| speeds.weight(g.id, Phase::Decode)).collect();
        assert_eq!(weights, [1.0, 1.0, 0.25]);
    }

    #[test]
    fn beside_one_other_nobody_can_say() {
        let (speeds, found) = blamed(&[1.0, 100.0], |_, _| 0.5);
        let groups = view(&[1.0; 2]).plan.unwrap().groups.clone();
        assert_eq!((found, speeds.weight(groups[1].id, Phase::Decode)), (vec![], 1.0));
    }
}
