//! What the swarm is asked for: before the trace requests alone, by which it is known what is beside steps, and some at once, by which it
//! is what peers lose to each other; and then the trace.

use super::{
    calibration::{Alone, AskedAlone, AskedCrowd, CalibrationPass},
    fresh_traces,
    together::{AskedTogether, ComputedRequest, ComputingPeers},
};
use crate::cli::{
    bench::serve::{
        arrivals::PlannedRequest,
        client::{BenchTarget, LoadBounds, RequestOutcome, Run, load},
        prompts::{PromptContent, Prompts},
        report::Report,
    },
    exit::{Exit, ExitKind},
};
use indicatif::ProgressBar;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tsnode_testnet::Testnet;

/// Requests asked one after another before the trace, for each peer with a model: what a step and a request take beside their layers.
const ALONE: usize = 4;
/// And of these at most, with answers of so many tokens, and then as many with longer ones: even the shorter ones are written for longer
/// than their first token is on its way.
const MOST_ALONE: usize = 24;
const ANSWERS_ALONE: [u32; 2] = [24, 72];
/// How much longer than the trace's median prompt its longer ones are at least where some of these are asked alone, too, and the part of
/// the trace's prompts that are no longer than these.
const LONGER: f64 = 1.25;
const LONGER_SHARE: f64 = 0.9;
/// Pairs of lengths that are asked alone.
const LENGTHS_ALONE: usize = 3;
/// What tells the seeds of requests in crowds from those of others, and of those that are not counted; from which bit passes do.
const CROWDED: u64 = 1 << 63;
const WARMING: u64 = 1 << 62;
const PASSES: u32 = 48;
/// Rounds of requests at once, of each number, and how many at once at most.
const ROUNDS: usize = 8;
const MOST_TOGETHER: usize = 16;
/// How long is looked at what processes use while nothing is asked, and how long what requests left behind goes on before that.
const IDLE: Duration = Duration::from_secs(3);
const SETTLED: Duration = Duration::from_secs(1);
/// How long one may run behind the last request's time.
const DRAIN: Duration = Duration::from_secs(600);
/// Requests at once.
const AT_ONCE: usize = 1024;

/// One after another.
const ONE: LoadBounds = LoadBounds { concurrency: 1, longest: DRAIN };

/// Whom requests are sent to, and with prompts of which seed.
pub(super) struct Asking<'n> {
    pub net: &'n Testnet,
    pub target: Arc<BenchTarget>,
    pub seed: u64,
}

/// The n-th time that requests are asked beside the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass(pub u8);

/// What came of the trace.
pub(super) struct TraceRun {
    pub report: Report,
    /// In order of their ends.
    pub outcomes: Vec<RequestOutcome>,
    pub processors: ProcessorUse,
}

/// Processors that were used while a trace was played, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessorUse {
    /// By peers and who asks them.
    pub peers: f64,
    /// By everything else on this machine, where the system tells.
    pub others: Option<f64>,
}

impl Asking<'_> {
    /// What takes how long beside the trace: requests one after another, then up to as many at once as have processors of their own. Each
    /// pass has prompts of its own: those of another would be kept where they were computed.
    pub async fn pass(
        &self,
        pass: Pass,
        trace: &[PlannedRequest],
        (peers, computing): (usize, ComputingPeers),
        context: u32,
    ) -> Result<CalibrationPass, Exit> {
        let peers = peers.max(1);
        let requests = (ALONE * peers).min(MOST_ALONE);
        let mut usual = alone(trace, requests, context).map(LoneSeries::of);
        let mut longer = longer_alone(trace, requests, context).map(LoneSeries::of);
        // The first of each peer finds cold caches, and is not counted.
        self.all(self.seed_of(pass, WARMING), usual[0].part(0, peers), ONE, pending(), |_, _| {}).await;
        // In turns: a while in which all is slower is not to be one length's alone.
        for turn in 0..requests.div_ceil(peers) {
            for (n, series) in usual.iter_mut().chain(&mut longer).enumerate() {
                let before = self.used();
                let seed = self.seed_of(pass, (LENGTHS_ALONE * turn + n) as u64);
                let run = self.all(seed, series.part(turn, peers), ONE, pending(), |_, _| {}).await;
                let used = self.used() - before;
                series.computed.extend(self.computed(&run.outcomes).await);
                series.add(run, used);
            }
        }
        let [short, long] = usual;
        let asked = [short.ended()?, long.ended()?];
        let longer = longer.map(LoneSeries::ended).transpose()?;
        let together = match asked[1].planned.first() {
            Some(request) => self.together(pass, *request, computing.at_once).await,
            None => Vec::new(),
        };
        Ok(CalibrationPass { asked, longer, together })
    }

    /// A pass before the trace, then as many requests at once as there are peers, and then for a while nothing.
    pub async fn alone(
        &self,
        pass: Pass,
        trace: &[PlannedRequest],
        (peers, computing): (usize, ComputingPeers),
        context: u32,
    ) -> Result<Alone, Exit> {
        let CalibrationPass { asked, longer, together } = self.pass(pass, trace, (peers, computing), context).await?;
        let mut crowd = None;
        if let (Some(request), Some(at_once)) = (asked[1].planned.first(), computing.crowd(MOST_TOGETHER)) {
            crowd = Some(self.crowd(pass, *request, at_once).await?);
        }
        tokio::time::sleep(SETTLED).await;
        let before = self.used();
        tokio::time::sleep(IDLE).await;
        let idle = (self.used() - before) / IDLE.as_secs_f64();
        Ok(Alone { asked, longer, together, crowd, idle, behind: None })
    }

    /// Of one pass's prompts, none of which is the trace's or another pass's.
    fn seed_of(&self, Pass(pass): Pass, n: u64) -> u64 {
        !self.seed ^ (u64::from(pass) << PASSES) ^ n
    }

    /// Rounds of requests that come at the same time and end before the next do.
    async fn together(&self, pass: Pass, request: PlannedRequest, most: usize) -> Vec<AskedTogether> {
        let mut all = Vec::new();
        for at_once in numbers(most.min(MOST_TOGETHER)) {
            let (planned, bounds) = (vec![request; at_once], LoadBounds { concurrency: at_once, ..ONE });
            let (mut rounds, mut took) = (Vec::new(), Duration::ZERO);
            for round in 0..ROUNDS {
                let seed = self.seed_of(pass, ((at_once as u64) << 32) | round as u64);
                let run = self.all(seed, &planned, bounds, pending(), |_, _| {}).await;
                took += run.took;
                rounds.push(self.computed(&run.outcomes).await);
            }
            all.push(AskedTogether { at_once, answer: request.answer, rounds, took });
        }
        all
    }

    /// Where these were computed, as far as one peer computed a part.
    async fn computed(&self, outcomes: &[RequestOutcome]) -> Vec<ComputedRequest> {
        let traces = fresh_traces::of_answers(&self.target.peer, outcomes).await;
        traces.iter().filter_map(ComputedRequest::of).collect()
    }

    /// Rounds of so many requests that come at the same time and end before the next do.
    async fn crowd(&self, pass: Pass, request: PlannedRequest, at_once: usize) -> Result<AskedCrowd, Exit> {
        let mut series = LoneSeries::of(vec![request; at_once * ROUNDS]);
        let bounds = LoadBounds { concurrency: at_once, ..ONE };
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let before = self.used();
            let seed = self.seed_of(pass, CROWDED | round as u64);
            let run = self.all(seed, series.part(round, at_once), bounds, pending(), |_, _| {}).await;
            let used = self.used() - before;
            rounds.push(self.computed(&run.outcomes).await);
            series.add(run, used);
        }
        let rounds = AskedTogether { at_once, answer: request.answer, rounds, took: series.run.took };
        Ok(AskedCrowd { asked: series.ended()?, rounds })
    }

    /// The trace's requests at their times.
    pub async fn trace(
        &self,
        planned: &[PlannedRequest],
        bar: &ProgressBar,
        stop: impl Future<Output = ()>,
    ) -> Result<TraceRun, Exit> {
        let last = planned.last().map_or(Duration::ZERO, |request| request.at);
        let bounds = LoadBounds { concurrency: AT_ONCE, longest: last + DRAIN };
        let (before, machine_before) = (self.used(), tsnode_testnet::machine_processor_time());
        let watch = |ended: usize, running: usize| {
            bar.set_position(ended as u64);
            bar.set_message(format!("{running} running"));
        };
        let run = self.all(self.seed, planned, bounds, stop, watch).await;
        let whole = tsnode_testnet::machine_processor_time().zip(machine_before).map(|(after, before)| after - before);
        let (used, took) = (self.used() - before, run.took.as_secs_f64().max(1e-9));
        let processors = ProcessorUse { peers: used / took, others: whole.map(|whole| (whole - used).max(0.0) / took) };
        let report = Report::new(&run, |n| planned[n].prompt, Vec::new());
        answered(&report, "no request of the trace was answered")?;
        Ok(TraceRun { report, outcomes: run.outcomes, processors })
    }

    async fn all(
        &self,
        seed: u64,
        planned: &[PlannedRequest],
        bounds: LoadBounds,
        stop: impl Future<Output = ()>,
        watch: impl Fn(usize, usize),
    ) -> Run {
        let prompts = Prompts { form: PromptContent::Tokens, shared: 0, seed };
        load(&self.target, prompts, planned, bounds, stop, watch).await
    }

    /// Processor time of all peers and of this process, which asks them (s).
    fn used(&self) -> f64 {
        let peers = (0..self.net.peers().len()).filter_map(|n| self.net.usage(n)).map(|(_, seconds)| seconds);
        peers.sum::<f64>() + tsnode_testnet::own_processor_time().unwrap_or(0.0)
    }
}

/// Requests of one length that are asked a few at a time.
struct LoneSeries {
    planned: Vec<PlannedRequest>,
    run: Run,
    used: f64,
    computed: Vec<ComputedRequest>,
}

impl LoneSeries {
    fn of(planned: Vec<PlannedRequest>) -> Self {
        Self { planned, run: Run::default(), used: 0.0, computed: Vec::new() }
    }

    /// Those of a turn, of which each has so many.
    fn part(&self, turn: usize, each: usize) -> &[PlannedRequest] {
        self.planned.chunks(each).nth(turn).unwrap_or_default()
    }

    /// What came of a turn, and what processor time it took (s).
    fn add(&mut self, run: Run, used: f64) {
        self.run.and(run);
        self.used += used;
    }

    fn ended(self) -> Result<AskedAlone, Exit> {
        let Self { planned, run, used, computed } = self;
        let asked = AskedAlone::new(planned, run, used, computed);
        answered(&asked.report, "a request alone is not answered")?;
        Ok(asked)
    }
}

/// Nothing measured is an error.
fn answered(report: &Report, what: &str) -> Result<(), Exit> {
    if report.completed > 0 {
        return Ok(());
    }
    let why = report.reasons.first().map_or("none ended in time", |(why, _)| why.as_str());
    Err(Exit::new(ExitKind::Request, format!("{what}: {why}")))
}

/// Requests with prompts as long as the trace's median one and shorter answers, and as many with longer ones, to be asked one after another.
fn alone(planned: &[PlannedRequest], requests: usize, context: u32) -> [Vec<PlannedRequest>; 2] {
    let answers = ANSWERS_ALONE.map(|tokens| tokens.min(context / 2).max(1));
    let prompt = prompt_at(planned, 0.5, context.saturating_sub(answers[1]));
    answers.map(|answer| vec![PlannedRequest { at: Duration::ZERO, prompt, answer }; requests])
}

/// As many with prompts as long as the trace's longer ones and the shorter answers; none where these are hardly longer: what they would
/// take more is chance.
fn longer_alone(planned: &[PlannedRequest], requests: usize, context: u32) -> Option<Vec<PlannedRequest>> {
    let [usual, _] = alone(planned, 1, context);
    let PlannedRequest { at, prompt: shorter, answer } = *usual.first()?;
    let prompt = prompt_at(planned, LONGER_SHARE, context.saturating_sub(answer));
    let is_longer = f64::from(prompt) >= f64::from(shorter) * LONGER;
    is_longer.then(|| vec![PlannedRequest { at, prompt, answer }; requests])
}

/// Tokens of the prompt that a share of the trace's does not pass, where there is room for so many.
fn prompt_at(planned: &[PlannedRequest], share: f64, room: u32) -> u32 {
    let mut prompts: Vec<u32> = planned.iter().map(|p| p.prompt).collect();
    prompts.sort_unstable();
    let place = (prompts.len() as f64 * share) as usize;
    prompts.get(place).map_or(1, |tokens| (*tokens).min(room.max(1)))
}

/// How many are asked at once, one number after another: the most, and twice as many each time until there.
fn numbers(most: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(2), |n| Some(n * 2)).take_while(|n| *n < most);
    doubled.chain((most > 1).then_some(most)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_once_are_asked_up_to_as_many_as_have_processors() {
        assert_eq!(
            [0, 1, 2, 3, 4, 11].map(numbers),
            [vec![], vec![], vec![2], vec![2, 3], vec![2, 4], vec![2, 4, 8, 11]]
        );
    }

    #[test]
    fn requests_alone_have_room_in_the_models_context() {
        let trace: Vec<PlannedRequest> =
            [10, 900, 1000].map(|prompt| PlannedRequest { at: Duration::ZERO, prompt, answer: 5 }).into();
        let lengths = |context| alone(&trace, 3, context).map(|all| (all.len(), all[0].prompt, all[0].answer));
        assert_eq!(lengths(1024), [(3, 900, 24), (3, 900, 72)]);
        assert_eq!(lengths(100), [(3, 50, 24), (3, 50, 50)]);
        assert_eq!(lengths(1), [(3, 1, 1); 2]);
    }

    #[test]
    fn longer_prompts_are_asked_alone_where_the_trace_has_them() {
        let trace = |longest: u32| -> Vec<PlannedRequest> {
            let prompts = (0..20).map(|n| if n < 16 { 100 } else { longest });
            prompts.map(|prompt| PlannedRequest { at: Duration::ZERO, prompt, answer: 5 }).collect()
        };
        let longer = |longest, context| {
            longer_alone(&trace(longest), 3, context).map(|all| (all.len(), all[0].prompt, all[0].answer))
        };
        assert_eq!(longer(400, 4096), Some((3, 400, 24)));
        assert_eq!(longer(400, 200), Some((3, 176, 24)), "as long as there is room");
        assert_eq!(longer(124, 4096), None, "hardly longer");
        assert_eq!(longer_alone(&[], 3, 4096), None);
    }
}
