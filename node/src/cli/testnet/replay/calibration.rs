//! What is beside what profiles say, by requests that were asked one after another before the trace and behind it: what they took beside
//! what the simulator says of them.

use super::together::{AskedTogether, ComputedRequest};
use crate::cli::bench::serve::{
    arrivals::PlannedRequest,
    client::Run,
    report::{Metric, Report},
};
use tsnode_coordinator::replay::machines::{Outcome, ReplayTrace};
use tsnode_protocol::Seconds;
use tsnode_simulator::{
    live_plan::{Overheads, PromptSpeed},
    percentile::Sorted,
};

/// Prompts that took less than so many times as long as profiles say, or more, were held up by something else.
const GROWTH: std::ops::RangeInclusive<f64> = 0.5..=4.0;
/// How often what grows with prompts and what does not are told apart, each beside what the other was before: each time they are three times
/// as near to what both lengths took.
const ROUNDS: usize = 5;
/// What a prompt's step is tried with to see how many of them a prompt has (s).
const STEP_TRIED: f64 = 1e-3;
/// Prompts of one length of which it must be known what they took: by fewer their median is chance.
const PROMPTS: usize = 3;

/// Requests alike but for their number, asked one after another or so many at once.
pub(super) struct AskedAlone {
    pub planned: Vec<PlannedRequest>,
    pub report: Report,
    /// Processor time that all processes used meanwhile (s).
    pub used: f64,
    /// Where they were computed.
    pub computed: Vec<ComputedRequest>,
    /// What the report is of.
    run: Run,
}

impl AskedAlone {
    pub fn new(planned: Vec<PlannedRequest>, run: Run, used: f64, computed: Vec<ComputedRequest>) -> Self {
        // Each turn counts its own from nought; all of them are alike.
        let report = Report::new(&run, |n| planned[n].prompt, Vec::new());
        Self { planned, report, used, computed, run }
    }

    /// With those that were asked again.
    fn and(mut self, mut again: Self) -> Self {
        self.planned.append(&mut again.planned);
        self.computed.append(&mut again.computed);
        self.run.and(again.run);
        Self::new(self.planned, self.run, self.used + again.used, self.computed)
    }

    /// Tokens of its prompts and of its answers.
    fn lengths(&self) -> (u32, u32) {
        self.planned.first().map_or((0, 0), |planned| (planned.prompt, planned.answer))
    }

    /// Requests and tokens of answers, in a second.
    pub fn rates(&self) -> (f64, f64) {
        let requests = self.planned.len() as f64 / self.report.duration.as_secs_f64().max(1e-9);
        (requests, requests * f64::from(self.answer()))
    }

    /// Tokens of these answers.
    fn answer(&self) -> u32 {
        self.lengths().1
    }

    /// The median time of these requests (s), as measured.
    fn live(&self, metric: Metric) -> f64 {
        self.report.at(metric, 0.5).unwrap_or_default()
    }

    /// Something of these requests as they were simulated.
    fn of(&self, outcome: &Outcome, what: impl Fn(&ReplayTrace) -> f64) -> Sorted {
        let lengths = self.lengths();
        let own = |t: &&ReplayTrace| (t.arrival.asked.prompt, t.arrival.asked.answer) == lengths;
        Sorted::new(outcome.traces.iter().filter(own).map(what))
    }

    /// Processor time of one of these requests beside its steps (s), whose processors are taken by them in the simulator: so many that were
    /// used while nothing was asked are not its own.
    fn beside(&self, stepped: &Outcome, threads: f64, idle: f64) -> f64 {
        let requests = self.planned.len().max(1) as f64;
        let computed = self.of(stepped, |t| (t.end - t.arrival.at - t.sending).0).mean();
        (self.used - idle * self.report.duration.as_secs_f64()) / requests - computed * threads
    }
}

/// Rounds of requests at once for which there are not processors enough.
pub(super) struct AskedCrowd {
    pub asked: AskedAlone,
    /// Where those of each round were computed.
    pub rounds: AskedTogether,
}

/// What was asked in one pass: one after another, and some at once.
pub(super) struct CalibrationPass {
    /// Those with shorter answers, and then those with longer ones.
    pub asked: [AskedAlone; 2],
    /// Those with longer prompts and the shorter answers.
    pub longer: Option<AskedAlone>,
    /// Of those with longer answers some at once, of each number that was tried.
    pub together: Vec<AskedTogether>,
}

/// Requests before the trace, and behind it.
pub(super) struct Alone {
    /// Those with shorter answers, and then those with longer ones.
    pub asked: [AskedAlone; 2],
    /// Those with longer prompts and the shorter answers; none where the trace's longer prompts are hardly longer than its others.
    pub longer: Option<AskedAlone>,
    /// Of those with longer answers some at once, of each number that was tried.
    pub together: Vec<AskedTogether>,
    /// And of those more at once than there are processors for.
    pub crowd: Option<AskedCrowd>,
    /// Processors that all processes use while nothing is asked.
    pub idle: f64,
    /// How many times as long as before the trace requests took behind it; none where they were not asked again.
    pub behind: Option<f64>,
}

/// What was measured beside what profiles say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Calibration {
    pub overheads: Overheads,
    pub signed: SignedOverheads,
    /// How prompts grow with their length; none where that was not measured.
    pub growth: Option<PromptGrowth>,
    /// What a step in which a prompt begins takes more than any step does.
    pub prompt_step: Seconds,
}

/// Overheads as measured (s). What is less than nothing is taken for nothing: simulated requests then take longer than real ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SignedOverheads {
    pub step: f64,
    pub request: f64,
    pub whole: f64,
}

/// What longer prompts take more than others, live and in the simulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PromptGrowth {
    /// Tokens of both.
    pub tokens: [u32; 2],
    /// What the longer ones take more (s).
    pub live: f64,
    pub simulated: f64,
    /// What of a prompt grows with it takes so many times as long as profiles say.
    pub times: f64,
}

impl Calibration {
    /// How much longer prompts take than profiles say.
    pub fn prompts(&self) -> PromptSpeed {
        PromptSpeed { times: self.growth.map_or(1.0, |growth| growth.times), step: self.prompt_step }
    }
}

impl Alone {
    /// With what was asked behind the trace: what a machine computes in a second changes by a tenth within minutes where others have a part
    /// of it, and the trace lies between both.
    pub fn and_behind(self, pass: CalibrationPass) -> Self {
        let Self { asked: [short, long], longer, together, crowd, idle, .. } = self;
        let CalibrationPass { asked: [short_behind, long_behind], longer: longer_behind, together: together_behind } =
            pass;
        let times = |before: &AskedAlone, behind: &AskedAlone| {
            Some(behind.live(Metric::E2el) / before.live(Metric::E2el)).filter(|times| times.is_finite())
        };
        let behind = times(&short, &short_behind).zip(times(&long, &long_behind)).map(|(a, b)| f64::midpoint(a, b));
        let asked = [short.and(short_behind), long.and(long_behind)];
        let longer = match (longer, longer_behind) {
            (Some(before), Some(behind)) => Some(before.and(behind)),
            (before, behind) => before.or(behind),
        };
        let mut together = together;
        for again in together_behind {
            match together.iter_mut().find(|asked| asked.at_once == again.at_once) {
                Some(asked) => asked.again(again),
                None => together.push(again),
            }
        }
        Self { asked, longer, together, crowd, idle, behind }
    }

    /// All that were asked one after another.
    pub fn all(&self) -> impl Iterator<Item = &AskedAlone> {
        self.asked.iter().chain(&self.longer)
    }

    /// What was measured beside what the simulator says of the same requests, one after another, where each step takes so much longer, and
    /// what of prompts grows with them so many times as long. Steps are computed by so many threads.
    ///
    /// What longer answers take more is steps alone: the first token's way to who asked hides some of those that follow it. But what slows
    /// the answers of one length down is half as much again in what is left for the end, and an end goes a first token's way, with
    /// nothing more to wait for: where it seems to take longer than one, that is steps, by all that is behind first tokens.
    ///
    /// Of what is left until a first token, as much as its gateway saw the prompt's own steps take is these steps': they keep the peer and its
    /// processor from others meanwhile, as what is beside them does not.
    pub fn calibration(&self, threads: f64, simulate: impl Fn(Seconds, PromptSpeed) -> Outcome) -> Calibration {
        let plain = simulate(Seconds(0.0), PromptSpeed::default());
        let with = |step: f64| {
            let simulate = |prompts| simulate(Seconds(step.max(0.0)), prompts);
            let mut prompts = PromptSpeed::default();
            let mut growth = None;
            // What grows is known beside what does not, and the other way round: longer prompts may have more steps.
            for _ in 0..ROUNDS {
                growth = self.growth(|times| simulate(PromptSpeed { times, ..prompts }));
                prompts.times = growth.map_or(1.0, |growth: PromptGrowth| growth.times);
                prompts.step = self.prompt_step(|step| simulate(PromptSpeed { step, ..prompts }));
            }
            let stepped = simulate(prompts);
            let (request, whole) = (self.to_first(&stepped), self.to_end(&stepped));
            (SignedOverheads { step, request, whole }, (growth, prompts.step), stepped)
        };
        let (mut signed, (mut growth, mut prompt_step), mut stepped) = with(self.step_by_lengths(&plain));
        if signed.whole > signed.request {
            (signed, (growth, prompt_step), stepped) = with(self.step_behind_first(&plain));
            signed.whole = signed.request;
        }
        let beside = self.asked.each_ref().map(|asked| asked.beside(&stepped, threads, self.idle));
        let token = Seconds(((beside[1] - beside[0]) / self.more()).max(0.0));
        let asked = Seconds((beside[0] - token.0 * f64::from(self.asked[0].answer())).max(0.0));
        let [step, request, whole] = [signed.step, signed.request, signed.whole].map(|time| Seconds(time.max(0.0)));
        let overheads = Overheads { step, request, whole, idle: self.idle, asked, token };
        Calibration { overheads, signed, growth, prompt_step }
    }

    /// How many tokens more the longer answers have.
    fn more(&self) -> f64 {
        let [shorter, longer] = self.asked.each_ref().map(AskedAlone::answer);
        f64::from(longer.saturating_sub(shorter).max(1))
    }

    /// What of prompts grows with them, where each step takes what is known already. What does not is the same of both lengths, but for
    /// the steps that a longer one has more: what they take is known by prompts of which nothing grows.
    fn growth(&self, simulate: impl Fn(f64) -> Outcome) -> Option<PromptGrowth> {
        let [usual, longer] = [&self.asked[0], self.longer.as_ref()?];
        let live = prompts_took(&[longer])? - prompts_took(&self.asked.each_ref())?;
        let more = |prompts: f64| {
            let outcome = simulate(prompts);
            let took = |asked: &AskedAlone| asked.of(&outcome, |t| (t.first - t.prompt_start).0).at(0.5);
            took(longer) - took(usual)
        };
        let (fixed, simulated) = (more(0.0), more(1.0));
        let is_sound = live > fixed && simulated > fixed && live.is_finite() && simulated.is_finite();
        let times = || ((live - fixed) / (simulated - fixed)).clamp(*GROWTH.start(), *GROWTH.end());
        let tokens = [usual, longer].map(|asked| asked.lengths().0);
        is_sound.then(|| PromptGrowth { tokens, live, simulated, times: times() })
    }

    /// What the first step of a usual prompt takes more than is simulated where it takes so much; nothing where that is not known.
    fn prompt_step(&self, simulate: impl Fn(Seconds) -> Outcome) -> Seconds {
        let Some(live) = prompts_took(&self.asked.each_ref()) else { return Seconds(0.0) };
        let took = |step: f64| self.asked[0].of(&simulate(Seconds(step)), |t| (t.first - t.prompt_start).0).at(0.5);
        let (without, with) = (took(0.0), took(STEP_TRIED));
        let steps = ((with - without) / STEP_TRIED).round().max(1.0);
        let step = (live - without) / steps;
        // A first token's way, and an end's, are no shorter than nothing.
        let most = self.asked.iter().map(|asked| asked.live(Metric::Ttft)).fold(f64::INFINITY, f64::min) - without;
        if step.is_finite() { Seconds(step.clamp(0.0, (most / steps).max(0.0))) } else { Seconds(0.0) }
    }

    /// What each step takes more than is simulated without anything beside it, by what longer answers take more (s).
    fn step_by_lengths(&self, plain: &Outcome) -> f64 {
        let longer = |of: &dyn Fn(&AskedAlone) -> f64| (of(&self.asked[1]) - of(&self.asked[0])) / self.more();
        longer(&|asked: &AskedAlone| asked.live(Metric::E2el))
            - longer(&|asked: &AskedAlone| asked.of(plain, whole).at(0.5))
    }

    /// The same by what is behind first tokens, in the middle of both lengths (s).
    fn step_behind_first(&self, plain: &Outcome) -> f64 {
        let each = |asked: &AskedAlone| {
            let live = asked.live(Metric::E2el) - asked.live(Metric::Ttft);
            let ours = asked.of(plain, |t| (t.end - t.first).0).at(0.5);
            (live - ours) / f64::from(asked.answer().saturating_sub(1).max(1))
        };
        f64::midpoint(each(&self.asked[0]), each(&self.asked[1]))
    }

    /// What it takes beside steps until a first token is there, in the middle of both lengths (s).
    fn to_first(&self, stepped: &Outcome) -> f64 {
        let ours = |asked: &AskedAlone| asked.of(stepped, |t| (t.first - t.arrival.at).0).at(0.5);
        let first = |asked: &AskedAlone| asked.live(Metric::Ttft) - ours(asked);
        f64::midpoint(first(&self.asked[0]), first(&self.asked[1]))
    }

    /// And until the end is (s).
    fn to_end(&self, stepped: &Outcome) -> f64 {
        self.asked[1].live(Metric::E2el) - self.asked[1].of(stepped, whole).at(0.5)
    }
}

/// The median of what prompts' steps took by their gateway's traces (s), if enough of them are known.
fn prompts_took(asked: &[&AskedAlone]) -> Option<f64> {
    let all: Vec<f64> = asked.iter().flat_map(|asked| &asked.computed).map(|c| c.prompt.took).collect();
    (all.len() >= PROMPTS).then(|| Sorted::new(all.into_iter()).at(0.5))
}

/// From a request's coming to its end (s).
fn whole(t: &ReplayTrace) -> f64 {
    (t.end - t.arrival.at).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{
        bench::serve::{client::RequestOutcome, timed_answer::TimedAnswer},
        testnet::replay::{simulated::sorted, together::ComputedPart},
    };
    use std::time::Duration;
    use tsnode_coordinator::{policy::routing::Asked, replay::machines::Arrival};
    use tsnode_protocol::PeerId;

    const MS: Duration = Duration::from_millis(1);

    /// Four requests for so many tokens, which took so long, and processors so many seconds.
    fn asked(answer: u32, (first, whole): (Duration, Duration), used: f64) -> AskedAlone {
        let outcome = |index| {
            let answer = Ok(TimedAnswer { first, whole, ..TimedAnswer::default() });
            RequestOutcome { index, late: Duration::ZERO, answer }
        };
        let run = Run { outcomes: (0..4).map(outcome).collect(), took: Duration::from_secs(1), ..Run::default() };
        let planned = vec![PlannedRequest { at: Duration::ZERO, prompt: 9, answer }; 4];
        AskedAlone::new(planned, run, used, Vec::new())
    }

    /// A request for so many tokens in the simulator: its prompt, each step after it, and what is added to both (s).
    fn trace(answer: u32, (prompt, each): (f64, f64), step: f64) -> ReplayTrace {
        let at = Seconds(0.0);
        let first = Seconds(prompt + step);
        let end = Seconds(first.0 + f64::from(answer - 1) * (each + step));
        let arrival = Arrival { at, asked: Asked::new(9, answer) };
        ReplayTrace { arrival, route: None, prompt_start: at, first, answer_start: first, end, sending: at }
    }

    fn near(seconds: f64, ms: f64) -> bool {
        (seconds * 1e3 - ms).abs() < 1e-6
    }

    /// A first token that is on its way for 20 ms, while steps of 2 ms go on: each token after it seems to take less than a step, and what
    /// longer answers take more does not.
    #[test]
    fn what_is_beside_steps_is_told_apart_by_answers_of_two_lengths() {
        // Each is there after 10 ms and its steps, and took a processor 5 ms and 3 ms for each token.
        let both = [24, 72].map(|answer: u32| {
            let used = 0.25 + 4.0 * (5e-3 + 3e-3 * f64::from(answer));
            asked(answer, (30 * MS, (10 + 2 * answer) * MS), used)
        });
        let alone = Alone { asked: both, longer: None, together: Vec::new(), crowd: None, idle: 0.25, behind: None };
        // By their layers prompts take four milliseconds, and each step after them half a one.
        let trace = |answer: u32, step: f64| trace(answer, (4e-3, 5e-4), step);
        let simulate = |step: Seconds, _| Outcome {
            traces: [24, 24, 72, 72].map(|answer| trace(answer, step.0)).into(),
            ..Outcome::default()
        };
        let Calibration { overheads: found, signed, growth, prompt_step } = alone.calibration(1.0, simulate);
        assert_eq!((signed.step, signed.request, signed.whole), (found.step.0, found.request.0, found.whole.0));
        assert_eq!(
            (growth, prompt_step.0),
            (None, 0.0),
            "prompts of one length were asked, and no traces of them seen"
        );
        assert!(near(found.step.0, 1.5), "{found:?}");
        // 30 ms, of which 4 + 1.5 are the prompt's step; and 10 + 2 · 72 ms, of which 5.5 + 71 · 2 are steps.
        assert!(near(found.request.0, 24.5) && near(found.whole.0, 6.5), "{found:?}");
        // Of 5 + 3 · 24 ms steps have 5.5 + 23 · 2, of 5 + 3 · 72 they have 5.5 + 71 · 2.
        assert!(near(found.token.0, 1.0) && near(found.asked.0, 1.5), "{found:?}");
        let left = found.left(&[2.0], 10.0, 100.0)[0];
        assert!((left - (2.0 - 0.25 - 0.015 - 0.1)).abs() < 1e-9, "{left}");
        let seen = |metric| sorted(&simulate(found.step, PromptSpeed::default()), metric, &found).at(0.0);
        assert!(near(seen(Metric::Ttft), 30.0) && near(seen(Metric::E2el), 58.0));
        let short = ReplayTrace { end: Seconds(6e-3), ..trace(24, 1.5e-3) };
        let outcome = Outcome { traces: vec![short], ..Outcome::default() };
        let both = [Metric::E2el, Metric::Ttft].map(|metric| sorted(&outcome, metric, &found).at(0.5));
        assert!(near(both[0], 30.0) && near(both[1], 30.0), "nobody has the end before the first token: {both:?}");
    }

    /// Steps of 10 ms, of which layers are 8, and of 11 ms while the shorter answers were written: what longer ones take more, 457 ms for 48
    /// tokens, says 9.5 ms a step, and 42 ms beside steps to the end, where a first token takes eight and a half.
    #[test]
    fn what_slowed_down_one_length_is_not_taken_for_an_ends_way() {
        let (shorter, longer) = ((50 * MS, (50 + 23 * 11) * MS), (50 * MS, (50 + 71 * 10) * MS));
        let asked = [asked(24, shorter, 0.0), asked(72, longer, 0.0)];
        let alone = Alone { asked, longer: None, together: Vec::new(), crowd: None, idle: 0.0, behind: None };
        let simulate = |step: Seconds, _| Outcome {
            traces: [24, 72].map(|answer| trace(answer, (40e-3, 8e-3), step.0)).into(),
            ..Outcome::default()
        };
        let plain = simulate(Seconds(0.0), PromptSpeed::default());
        let by_lengths = alone.step_by_lengths(&plain);
        assert!((by_lengths - (0.457 / 48.0 - 8e-3)).abs() < 1e-9, "{by_lengths}");
        assert!(alone.to_end(&simulate(Seconds(by_lengths), PromptSpeed::default())) > 0.04);
        // Behind first tokens steps took three and two milliseconds more than their layers.
        let found = alone.calibration(1.0, simulate).overheads;
        assert!(near(found.step.0, 2.5) && near(found.request.0, 7.5), "{found:?}");
        assert_eq!(found.whole, found.request);
    }
    /// Prompts of nine tokens and of forty, the latter with first tokens after so long; what both prompts took (s).
    fn with_longer_prompts(took: [f64; 2], first: Duration) -> Alone {
        let computed = |took| {
            let part = ComputedPart { peer: PeerId([1; 32]), took };
            vec![ComputedRequest { prompt: part, answer: part }; 4]
        };
        // A prompt's first token is there with its steps, and each of its answer after 10 ms.
        let usual = Duration::from_secs_f64(took[0]);
        let both = [24, 72].map(|answer: u32| {
            let whole = usual + (answer - 1) * 10 * MS;
            AskedAlone { computed: computed(took[0]), ..asked(answer, (usual, whole), 0.0) }
        });
        let planned = vec![PlannedRequest { at: Duration::ZERO, prompt: 40, answer: 24 }; 4];
        let longer = asked(24, (first, first + 230 * MS), 0.0);
        let longer = Some(AskedAlone { planned, computed: computed(took[1]), ..longer });
        Alone { asked: both, longer, together: Vec::new(), crowd: None, idle: 0.0, behind: None }
    }

    /// By profiles 4 ms whatever the prompt, in one step or in two, and one for each of its tokens so many times; answers' steps of 10 ms.
    fn by_profiles(step: Seconds, prompts: PromptSpeed) -> Outcome {
        let PromptSpeed { times, step: own } = prompts;
        let prompt =
            |tokens: u32, steps: f64| steps * (4e-3 + own.0 + step.0) - step.0 + f64::from(tokens) * 1e-3 * times;
        let of = |(tokens, steps, answer): (u32, f64, u32)| {
            let mut trace = trace(answer, (prompt(tokens, steps), 10e-3), step.0);
            trace.arrival.asked.prompt = tokens;
            trace
        };
        let traces = [(9, 1.0, 24), (9, 1.0, 72), (40, 2.0, 24)].map(of).into();
        Outcome { traces, ..Outcome::default() }
    }

    /// Nine tokens took 25 ms in one step, and forty 91 in two: 4 and p and nine times t, and twice 4 and p and forty times t.
    #[test]
    fn what_of_prompts_grows_is_told_apart_from_what_each_of_their_steps_takes() {
        let alone = with_longer_prompts([25e-3, 91e-3], 91 * MS);
        let found = alone.calibration(1.0, by_profiles);
        let growth = found.growth.unwrap();
        assert!((growth.times - 41.0 / 22.0).abs() < 5e-3 && growth.tokens == [9, 40], "{growth:?}");
        assert!((found.prompt_step.0 * 1e3 - (21.0 - 9.0 * 41.0 / 22.0)).abs() < 0.05, "{found:?}");
        // Nothing is left for what is beside steps.
        assert!(near(growth.live, 66.0) && found.signed.request.abs() < 1e-4, "{found:?}");
        let first = by_profiles(found.overheads.step, found.prompts());
        let longest = sorted(&first, Metric::Ttft, &found.overheads).at(1.0);
        assert!((longest * 1e3 - 91.0).abs() < 0.2, "both lengths come to what they took: {longest}");
    }

    /// A first token after 28 ms, of which its gateway saw 25 in the prompt's step: three are on the way.
    #[test]
    fn what_is_on_a_first_tokens_way_keeps_no_peer_from_others() {
        let mut alone = with_longer_prompts([25e-3, 29e-3], 29 * MS);
        alone.longer = None;
        alone.asked = alone.asked.map(|asked| {
            let answer = asked.answer();
            let first = 28 * MS;
            AskedAlone { computed: asked.computed, ..self::asked(answer, (first, first + (answer - 1) * 10 * MS), 0.0) }
        });
        let found = alone.calibration(1.0, by_profiles);
        assert!(near(found.prompt_step.0, 12.0) && near(found.signed.request, 3.0), "{found:?}");
    }

    #[test]
    fn prompts_that_say_nothing_of_their_growth_change_nothing() {
        // Ten times as long was held up by something else.
        assert_eq!(with_longer_prompts([25e-3, 0.339], 339 * MS).calibration(1.0, by_profiles).prompts().times, 4.0);
        for took in [[25e-3, 20e-3], [25e-3, 29e-3 - 1e-6], [25e-3, f64::NAN]] {
            let found = with_longer_prompts(took, 91 * MS).calibration(1.0, by_profiles);
            assert_eq!((found.growth, found.prompts().times), (None, 1.0), "{took:?}");
        }
        let mut few = with_longer_prompts([25e-3, 91e-3], 91 * MS);
        few.longer.as_mut().unwrap().computed.truncate(PROMPTS - 1);
        assert_eq!(few.calibration(1.0, by_profiles).growth, None, "a median of two is chance");
    }

    /// A first token that comes sooner than is simulated is told, though nothing is taken off for it.
    #[test]
    fn what_is_less_than_nothing_is_told_before_it_is_left_out() {
        let found = with_longer_prompts([10e-3, 47e-3], 47 * MS)
            .calibration(1.0, |step, _| by_profiles(step, PromptSpeed::default()));
        assert!(near(found.signed.request, -3.0), "{found:?}");
        assert_eq!((found.overheads.request, found.overheads.whole), (Seconds(0.0), Seconds(0.0)));
    }

    /// Half as long again behind the trace: in between a median request took what lies in between.
    #[test]
    fn what_is_asked_behind_the_trace_counts_as_much_as_what_was_asked_before_it() {
        let of = |each: Duration| [24, 72].map(|answer: u32| asked(answer, (30 * MS, answer * each), 1.0));
        let before =
            Alone { asked: of(10 * MS), longer: None, together: Vec::new(), crowd: None, idle: 0.0, behind: None };
        let round = |took| AskedTogether { at_once: 2, answer: 72, rounds: vec![Vec::new()], took };
        let before = Alone { together: vec![round(3 * MS)], ..before };
        let pass = CalibrationPass { asked: of(15 * MS), longer: None, together: vec![round(5 * MS)] };
        let both = before.and_behind(pass);
        assert_eq!(both.behind, Some(1.5));
        let [short, long] = &both.asked;
        assert_eq!((short.planned.len(), short.used, short.report.completed), (8, 2.0, 8));
        assert!((0.72..=1.08).contains(&long.live(Metric::E2el)), "{}", long.live(Metric::E2el));
        assert_eq!((both.together.len(), both.together[0].rounds.len(), both.together[0].took), (1, 2, 8 * MS));
    }
}
