//! Whether those who do the work are as fast as their adverts claim.
//!
//! Two witnesses are heard, and only both together cut anybody off. The first is the peer itself: its heartbeats say what was
//! computed in the quickest of its last steps, and how long that took. Load, queues and networks are not in a step's time,
//! and a busy host disturbs many steps, but not every one of a minute. The second is the gateway's clock: how long answers
//! took it sees without believing anybody, with all that held them up, which is why it alone cuts nobody off. Where it
//! disagrees with the claim and the peer's words do not, the peer gets less to do.
//!
//! Other gateways have clocks of their own. Where they have seen such work as well, and none says what this one does, it takes
//! three times as many answers (`witnesses.rs`).
//!
//! Both are held against what others of its kind show: nobody keeps quite to a measurement on an idle host. That others
//! seem to keep more than they claim says nothing: their tokens have waited somewhere, and came all at once.

mod doubts;

use crate::{Time, trust::Offence, view::View, witnesses::Doubted};
use doubts::Doubts;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tsnode_protocol::{Group, GroupId, LayerProfile, PeerId, Phase, TimedStep};

/// Works of a leader that are looked at: the last ones, and no fewer.
const WORKS: usize = 8;
/// Of these, so many may have been quicker than the one that counts: tokens that came in a burst.
const QUICKER: usize = 2;
/// Others of its kind that must be known as well.
const OTHERS: usize = 2;
/// So many times further off than the others loses nothing: hosts differ in what else they do.
const TOLERATED: f64 = 4.0;
/// A claim is false where the peer's own steps are so many times further off it than others' are,
const FALSE: f64 = 3.0;
/// and the gateway's clock sees it so many times further off as well.
const AGREES: f64 = 2.0;
/// Work that is done in such a part of the time claimed was done before its tokens came.
const BURST: f64 = 0.25;
/// So is work of which one token was waited for through such a part of the time.
const STOOD: f64 = 0.5;
/// The least weight: what is never asked cannot show that it has become faster.
const LEAST: f64 = 1.0 / 16.0;
/// The least where others are not known: a claim of a thousand times the speed draws no more than what was claimed honestly.
const UNKNOWN: f64 = 1.0 / 4096.0;
/// What a peer says of its steps counts for so long, the quickest of each part of it.
const WORDS: usize = 60;
const WORD: Duration = Duration::from_secs(1);
/// Sequences that a step is shared by, at most as many as a claim is stretched for.
const SHARED: u32 = 256;
/// Groups remembered.
const GROUPS: usize = 4096;

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClaimedWork {
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

impl ClaimedWork {
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
        self.claimed_beside(view, group, 1)
    }

    /// The same where a step computes so many sequences, this one among them.
    fn claimed_beside(self, view: &View, group: &Group, sequences: u32) -> Option<f64> {
        claimed(view, group, |profile| match self {
            Self::Prompt { tokens } => {
                let ([a, b, c], n) = (profile.prefill, f64::from(tokens));
                a + b * n + c * n * n
            }
            Self::Answer { tokens, context } => {
                let [a, b, c] = profile.decode;
                (a + (b * f64::from(context) + c) * f64::from(sequences)) * f64::from(tokens)
            }
        })
    }
}

/// What a group's stages take by their peers' adverts (s), where a layer takes this.
fn claimed(view: &View, group: &Group, layer: impl Fn(&LayerProfile) -> f64) -> Option<f64> {
    let mut seconds = 0.0;
    for stage in &group.stages {
        let device = view.adverts.get(&stage.peer)?.devices.get(usize::from(stage.device))?;
        seconds += layer(device.profile(group.model)?) * f64::from(stage.layers.len());
    }
    (seconds > 0.0 && seconds.is_finite()).then_some(seconds)
}

/// Work as a gateway's clock saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenWork {
    /// What was done.
    pub work: ClaimedWork,
    /// When it was done.
    pub at: Time,
    /// How long it took.
    pub took: Duration,
    /// The longest time in it without a token.
    pub stood: Duration,
    /// Sequences that its steps were shared by, this one among them, as far as is known.
    pub sequences: u32,
}

impl SeenWork {
    /// Whether its tokens came as they were computed, and not all at once behind something that held them up.
    fn flowed(&self, claimed: f64) -> bool {
        let took = self.took.as_secs_f64();
        took >= BURST * claimed && self.stood.as_secs_f64() <= STOOD * took
    }
}

/// A group in a phase, and what is known of its speed: its leader answers for it.
#[derive(Clone, Debug)]
struct SpeedRecord {
    leader: PeerId,
    /// Stages: KV transfers between them take their time.
    stages: usize,
    /// Times its last works took over those that were claimed.
    works: VecDeque<f64>,
    /// When the last of them ended: what began before that tells nothing new.
    until: Time,
    /// The quickest steps its leader has told of.
    words: VecDeque<(Time, TimedStep)>,
}

impl SpeedRecord {
    fn of(leader: PeerId, group: &Group) -> Self {
        let (works, words) = (VecDeque::new(), VecDeque::new());
        Self { leader, stages: group.stages.len(), works, until: Time::ZERO, words }
    }

    /// One more work. Those that run at one time have one reason to be slow, and are one.
    fn works(&mut self, off: f64, began: Time, at: Time) -> bool {
        if let (Some(last), true) = (self.works.back_mut(), began < self.until) {
            *last = last.min(off);
            return false;
        }
        if self.works.len() == WORKS {
            self.works.pop_front();
        }
        self.works.push_back(off);
        self.until = at;
        true
    }

    /// How far its works are off the claim when little holds them up; nothing while little is known.
    fn clock(&self) -> Option<f64> {
        let mut works: Vec<f64> = self.works.iter().copied().collect();
        works.sort_by(f64::total_cmp);
        works.get(QUICKER).copied().filter(|_| works.len() >= WORKS)
    }

    /// Its leader tells of a step.
    fn says(&mut self, now: Time, step: TimedStep) {
        match self.words.back_mut() {
            Some((since, last)) if now < *since + WORD => {
                if per_token(&step) < per_token(last) {
                    *last = step;
                }
            }
            _ => self.words.push_back((now, step)),
        }
        while self.words.len() > WORDS {
            self.words.pop_front();
        }
    }

    /// How far its own steps of each size are off the claim, at their quickest.
    fn words(&self, view: &View, group: &Group) -> BTreeMap<u32, f64> {
        let mut words = BTreeMap::new();
        for (_, step) in &self.words {
            if let Some(claimed) = claimed(view, group, |p| p.takes(&step.size)) {
                let off = step.took.0 / claimed;
                words.entry(size(step)).and_modify(|least: &mut f64| *least = least.min(off)).or_insert(off);
            }
        }
        words
    }
}

/// Steps of a size are compared, by doublings: whatever a step costs beside what is claimed weighs more in a small one.
fn size(step: &TimedStep) -> u32 {
    let tokens = if step.size.prompts > 0 { step.size.prompts } else { step.size.answers };
    tokens.max(1).ilog2()
}

/// What a step took, for comparison with others of its kind.
fn per_token(step: &TimedStep) -> f64 {
    if step.size.prompts > 0 { step.took.0 / f64::from(step.size.prompts) } else { step.took.0 }
}

/// How many times further steps of each size are off than others' are; of the size where that is least.
fn further(own: &BTreeMap<u32, f64>, others: &[&BTreeMap<u32, f64>]) -> Option<f64> {
    let beside = |(size, off): (&u32, &f64)| {
        let like = |other: &BTreeMap<u32, f64>| other.range(..=*size).next_back().map(|(_, off)| *off);
        Some(off / usual(others.iter().filter_map(|other| like(other)).collect())?)
    };
    own.iter().filter_map(beside).min_by(f64::total_cmp)
}

/// How far others are off their claims: the median, where there are enough; the upper one of two in the middle, in doubt for whom
/// it is about. Nobody is held to more than a claim.
fn usual(mut others: Vec<f64>) -> Option<f64> {
    others.sort_by(f64::total_cmp);
    let median = others.get(others.len() / 2).filter(|_| others.len() >= OTHERS)?;
    Some(median.max(1.0))
}

/// Speeds as one gateway sees them.
#[derive(Debug, Default)]
pub struct ClaimCheck {
    records: BTreeMap<(GroupId, Phase), SpeedRecord>,
    doubts: Doubts,
}

impl ClaimCheck {
    /// Leaders say how quick their groups' steps are.
    pub fn hear(&mut self, now: Time, view: &View) {
        for (id, load) in &view.up {
            let Some(group) = view.group(*id) else { continue };
            let said = [(Phase::Prefill, load.quickest.prompts), (Phase::Decode, load.quickest.answers)];
            for (phase, step) in said {
                if let (Some(step), Some(record)) = (step, self.record(view, group, phase)) {
                    record.says(now, step);
                }
            }
        }
        self.doubt(now, view);
    }

    /// A group did some work. Says what its leader is to blame for, if it is.
    pub fn saw(&mut self, view: &View, group: &Group, seen: SeenWork) -> Option<(PeerId, Offence)> {
        let SeenWork { work, at, took, .. } = seen;
        let sequences = seen.sequences.clamp(1, SHARED);
        let claimed = work.claimed_beside(view, group, sequences).filter(|_| work.is_long_enough())?;
        if !seen.flowed(claimed) {
            return None;
        }
        let record = self.record(view, group, work.phase())?;
        let (leader, off) = (record.leader, took.as_secs_f64() / claimed);
        if !record.works(off, at.saturating_sub(took), at) {
            return None;
        }
        let key = (group.id, work.phase());
        if !self.agrees(key) {
            return None;
        }
        let times = self.words(view, group, key)?;
        // Which stage of several is slow cannot be told from outside; such a group loses weight, and nobody is blamed.
        if times < FALSE || group.stages.len() > 1 {
            return None;
        }
        let doubted = Doubted { key, model: group.model, leader, since: self.doubts.since(key) };
        let is_seconded = view.witnesses.second(at, doubted);
        Some((leader, Offence::FalseSpeed { times: times.min(f64::from(u32::MAX)) as u32, is_seconded }))
    }

    fn record(&mut self, view: &View, group: &Group, phase: Phase) -> Option<&mut SpeedRecord> {
        let leader = group.leader()?;
        if self.records.len() >= GROUPS {
            self.records.retain(|(id, _), _| view.group(*id).is_some());
        }
        Some(self.records.entry((group.id, phase)).or_insert_with(|| SpeedRecord::of(leader, group)))
    }

    /// How many times further works are off their claim than others' are, by this gateway's clock.
    fn clock(&self, key: (GroupId, Phase)) -> Option<f64> {
        let own = self.records.get(&key)?.clock()?;
        Some(own / usual(self.others(key).filter_map(|(_, other)| other.clock()).collect())?)
    }

    /// Whether this gateway's clock says so as well: beside others, or while too few of them have worked, beside the claim.
    fn agrees(&self, key: (GroupId, Phase)) -> bool {
        let own = self.records.get(&key).and_then(SpeedRecord::clock);
        own.is_some_and(|own| self.clock(key).unwrap_or(own) >= AGREES)
    }

    /// How many times further steps are off their claim than others' of their size, by the words of those who computed them; of
    /// the size where that is least. Who draws most of the work has larger steps than others ever have: these are held against
    /// others' largest smaller ones, in which whatever a step costs beside what is claimed weighs more.
    fn words(&self, view: &View, group: &Group, key: (GroupId, Phase)) -> Option<f64> {
        let others = self.others(key).filter_map(|(id, other)| Some(other.words(view, view.group(id)?)));
        let others: Vec<BTreeMap<u32, f64>> = others.collect();
        further(&self.records.get(&key)?.words(view, group), &others.iter().collect::<Vec<_>>())
    }

    /// Groups of the same kind that others lead.
    fn others(&self, key: (GroupId, Phase)) -> impl Iterator<Item = (GroupId, &SpeedRecord)> {
        let record = self.records.get(&key);
        let is_like =
            move |other: &SpeedRecord| record.is_some_and(|r| other.leader != r.leader && other.stages == r.stages);
        let of_phase = self.records.iter().filter(move |((_, phase), other)| *phase == key.1 && is_like(other));
        of_phase.map(|((id, _), other)| (*id, other))
    }

    /// What a group's share of requests is multiplied with, by halves so that it changes rarely.
    ///
    /// Who claims enough draws all the work, and then nobody else is known whom it could be held against. While that is so its
    /// works are held against its claim alone: others get work until they are known.
    #[must_use]
    pub fn weight(&self, group: GroupId, phase: Phase) -> f64 {
        let own = || self.records.get(&(group, phase)).and_then(SpeedRecord::clock);
        let (times, least) = match self.clock((group, phase)) {
            Some(times) => (times, LEAST),
            None => (own().unwrap_or(1.0), UNKNOWN),
        };
        if times <= TOLERATED { 1.0 } else { (TOLERATED / times).log2().floor().exp2().max(least) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use std::sync::Arc;
    use tsnode_protocol::{Epoch, LayerRange, Load, ModelId, Plan, Quickest, Seconds, Stage, StepSize, Term};

    const MODEL: ModelId = ModelId([1; 16]);
    const WORK: ClaimedWork = ClaimedWork::Answer { tokens: 100, context: 50 };

    pub(super) fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    /// One decode group a peer; each claims a millisecond a token, over what it boasts.
    pub(super) fn view(boasts: &[f64]) -> View {
        let advert = |boast: f64| sample::measured(0, [1e-3 / boast; 3], [0.25e-3 / boast, 0.0, 0.0]);
        let adverts = (1..).map(peer).zip(boasts.iter().map(|b| advert(*b))).collect();
        let stage = |n: usize| Stage { peer: peer(n as u8), device: 0, layers: LayerRange { start: 0, end: 4 } };
        let groups = (1..=boasts.len()).map(|n| Group::new(MODEL, Phase::Decode, vec![stage(n)])).collect();
        let plan = Plan {
            epoch: Epoch(0),
            term: Term(0),
            parent: None,
            groups,
            routes: vec![],
            chosen: vec![],
            reason: String::new(),
        };
        View { plan: Some(Arc::new(plan)), adverts: Arc::new(adverts), ..View::default() }
    }

    /// An answer that ends at `at` (s).
    pub(super) fn answer(at: f64, took: f64) -> SeenWork {
        let [at, took] = [at, took].map(Duration::from_secs_f64);
        SeenWork { work: WORK, at, took, stood: took / 50, sequences: 1 }
    }

    /// Steps of one sequence that take so long (s), as each peer's heartbeats say.
    pub(super) fn says(view: &mut View, steps: &[f64]) {
        says_of(view, &steps.iter().map(|took| (*took, 1)).collect::<Vec<_>>());
    }

    /// The same of so many sequences.
    fn says_of(view: &mut View, steps: &[(f64, u32)]) {
        let size = |answers| StepSize { prompts: 0, pairs: 0, answers, context: 50 * u64::from(answers) };
        let groups = view.plan.iter().flat_map(|p| &p.groups).map(|g| g.id);
        let load = |(took, answers): &(f64, u32)| {
            let answers = Some(TimedStep { took: Seconds(*took), size: size(*answers) });
            Load { quickest: Quickest { answers, prompts: None }, ..Load::default() }
        };
        view.up = groups.zip(steps.iter().map(load)).collect();
    }

    /// Everybody's steps take so long (s), and they answer in turn, `took` seconds each; who is blamed in which round.
    fn blamed(boasts: &[f64], steps: &[f64], took: impl Fn(usize, usize) -> f64) -> (ClaimCheck, Vec<(usize, PeerId)>) {
        let (mut view, mut speeds, mut blamed) = (view(boasts), ClaimCheck::default(), Vec::new());
        says(&mut view, steps);
        for round in 0..40 {
            let at = 100.0 * (round + 1) as f64;
            speeds.hear(Duration::from_secs_f64(at), &view);
            for (n, group) in view.plan.as_ref().unwrap().groups.iter().enumerate() {
                let said = speeds.saw(&view, group, answer(at, took(round, n)));
                blamed.extend(said.map(|(peer, _)| (round, peer)));
            }
        }
        (speeds, blamed)
    }

    fn weights(speeds: &ClaimCheck, boasts: &[f64]) -> Vec<f64> {
        view(boasts).plan.unwrap().groups.iter().map(|g| speeds.weight(g.id, Phase::Decode)).collect()
    }

    #[test]
    fn who_claims_more_than_its_own_steps_keep_is_blamed_once_enough_is_known() {
        for boast in [5.0, 100.0] {
            let (_, found) = blamed(&[1.0, boast, 1.0], &[0.002; 3], |_, _| 0.5);
            assert_eq!(found.first(), Some(&(7, peer(2))), "in its eighth answer");
            assert!(found.len() == 33 && found.iter().all(|(_, who)| *who == peer(2)));
        }
    }

    #[test]
    fn a_gateway_alone_cuts_nobody_off() {
        // Fifty times as slow as it claims by the clock, and its steps are as quick as it says: something holds them up.
        let (speeds, found) = blamed(&[1.0; 3], &[0.001; 3], |_, n| if n == 1 { 5.0 } else { 0.1 });
        assert_eq!((found, weights(&speeds, &[1.0; 3])), (vec![], vec![1.0, 1.0 / 16.0, 1.0]));
        // Nor do words alone: they may be of a moment.
        let (_, found) = blamed(&[1.0; 3], &[0.001, 0.02, 0.001], |_, _| 0.1);
        assert_eq!(found, []);
    }

    #[test]
    fn steps_are_compared_with_steps_of_their_size() {
        // What a step costs beside its layers is little in a step of sixteen sequences, and much in one of a single one.
        let (mut view, mut speeds) = (view(&[1.0, 1.0, 1.0]), ClaimCheck::default());
        says_of(&mut view, &[(0.001, 16), (0.004, 1), (0.001, 16)]);
        speeds.hear(Duration::ZERO, &view);
        let groups = view.plan.clone().unwrap().groups.clone();
        for n in 0..20 {
            for (group, took) in groups.iter().zip([0.1, 0.4, 0.1]) {
                assert_eq!(speeds.saw(&view, group, answer(10.0 * f64::from(n + 1), took)), None);
            }
        }
        says(&mut view, &[0.001, 0.004, 0.001]);
        speeds.hear(Duration::from_secs(300), &view);
        assert!(speeds.saw(&view, &groups[1], answer(300.0, 0.4)).is_some(), "once they tell of such steps as well");
    }

    #[test]
    fn busy_hosts_and_busy_moments_are_no_lies() {
        // Everybody is five times slower than measured, one four times slower than that, and every other answer stands still.
        let took = |round: usize, n: usize| if round.is_multiple_of(2) { 60.0 } else { [0.5, 2.0, 0.6, 0.4][n] };
        let (speeds, found) = blamed(&[1.0; 4], &[0.001, 0.0025, 0.001, 0.001], took);
        assert_eq!(found, []);
        assert_eq!(weights(&speeds, &[1.0; 4]), [1.0; 4]);
    }

    #[test]
    fn tokens_that_come_all_at_once_make_nobody_else_slow() {
        // Two peers' answers wait with a gateway that was not run, and seem to take no time.
        let took = |round: usize, n: usize| if n > 0 && round.is_multiple_of(3) { 1e-4 } else { 0.4 };
        let (speeds, found) = blamed(&[1.0; 3], &[0.004; 3], took);
        assert_eq!((found, weights(&speeds, &[1.0; 3])), (vec![], vec![1.0; 3]));
    }

    #[test]
    fn answers_that_run_at_one_time_are_one() {
        let (mut view, mut speeds) = (view(&[1.0, 5.0, 1.0]), ClaimCheck::default());
        says(&mut view, &[0.001, 0.002, 0.001]);
        speeds.hear(Duration::ZERO, &view);
        let groups = view.plan.clone().unwrap().groups.clone();
        for n in 0..20 {
            for group in [&groups[0], &groups[2]] {
                assert_eq!(speeds.saw(&view, group, answer(10.0 * f64::from(n + 1), 0.1)), None);
            }
        }
        // All have stood still for as long, once.
        for _ in 0..20 {
            assert_eq!(speeds.saw(&view, &groups[1], answer(300.0, 30.0)), None);
        }
        assert_eq!(weights(&speeds, &[1.0; 3]), [1.0; 3]);
    }

    #[test]
    fn who_claims_too_much_loses_weight_by_halves() {
        let (speeds, found) = blamed(&[1.0, 1.0, 9.0], &[0.001, 0.001, 0.0001], |_, _| 0.5);
        assert_eq!((found, weights(&speeds, &[1.0; 3])), (vec![], vec![1.0, 1.0, 0.25]));
    }

    #[test]
    fn beside_one_other_nobody_can_say() {
        let (speeds, found) = blamed(&[1.0, 100.0], &[0.002; 2], |_, _| 0.5);
        // But who works so much longer than it claims gets no more than it would have got without the claim.
        assert_eq!((found, weights(&speeds, &[1.0; 2])), (vec![], vec![0.5, 1.0 / 128.0]));
    }
}
