//! What came of a replay, live and simulated: a row for each figure, and how far the simulator is off.

use super::{
    asking::ProcessorUse,
    calibration::{Calibration, PromptGrowth, SignedOverheads},
    simulated::{CrowdComparison, CrowdTime, SimulatedReplay},
    terms::{LatencyTerm, LatencyTerms},
};
use crate::cli::{
    bench::serve::report::{DRAWN, Metric, Report, time},
    exit::{Exit, ExitKind},
};
use serde_json::{Value, json};
use tsnode_coordinator::replay::machines::{Contention, Oversubscription};
use tsnode_simulator::plot::{Plot, Scale};

/// How far medians and P90 of first tokens and whole answers may be off, and throughput, where nothing else is asked for.
const TIMES: f64 = 0.10;
const THROUGHPUT: f64 = 0.05;
/// Part of all processors that other programs use which is told.
const DISTURBING: f64 = 0.05;

/// A replay.
pub(super) struct ReplayComparison {
    pub trace: String,
    /// Requests whose lengths were cut to the model's context.
    pub cut: usize,
    pub live: Report,
    /// Where live requests' time went; nothing where their gateway has counted none.
    pub terms: Option<LatencyTerms>,
    pub simulated: SimulatedReplay,
    /// What was measured before the trace was so with one plan.
    pub settled: bool,
    /// Another plan was adopted while the trace was played.
    pub replanned: bool,
    /// How many times as long as before the trace requests alone took behind it; none where they were not asked again.
    pub behind: Option<f64>,
    pub processors: ProcessorUse,
}

/// A figure of both.
#[derive(Clone, Debug, PartialEq)]
struct Figure {
    name: String,
    live: f64,
    simulated: f64,
    /// Of which time (s); else so many in a second.
    metric: Option<Metric>,
    /// How far it may be off; told, and not judged, where there is none.
    most: Option<f64>,
}

impl Figure {
    fn ratio(&self) -> f64 {
        self.simulated / self.live
    }

    fn off(&self) -> f64 {
        (self.ratio() - 1.0).abs()
    }

    fn shown(&self, value: f64) -> String {
        if self.metric.is_some() { time(value) } else { format!("{value:.2}") }
    }
}

impl ReplayComparison {
    fn figures(&self) -> Vec<Figure> {
        let mut all = Vec::new();
        for metric in Metric::ALL {
            for (percentile, share) in [("P50", 0.5), ("P90", 0.9), ("P99", 0.99)] {
                let Some(live) = self.live.at(metric, share) else { continue };
                let is_judged = matches!(metric, Metric::Ttft | Metric::E2el) && share < 0.95;
                let name = format!("{} {percentile}", metric.words());
                let simulated = self.simulated.at(metric, share);
                let (metric, most) = (Some(metric), is_judged.then_some(TIMES));
                all.push(Figure { name, live, simulated, metric, most });
            }
        }
        let (live, simulated) = (self.live.throughput(), self.simulated.throughput());
        let rates = [("requests/s", live.0, simulated.0), ("tokens/s of answers", live.1, simulated.1)];
        all.extend(rates.map(|(name, live, simulated)| {
            let name = name.to_owned();
            Figure { name, live, simulated, metric: None, most: Some(THROUGHPUT) }
        }));
        all
    }

    /// Lines before the table.
    pub fn lines(&self) -> Vec<String> {
        let SimulatedReplay { calibration, groups, processors, busy, .. } = &self.simulated;
        let overheads = &calibration.overheads;
        let phases: Vec<String> =
            groups.iter().filter(|(_, count)| *count > 0).map(|(phase, count)| format!("{count} {phase}")).collect();
        let mut lines = vec![format!("{} on groups: {}", self.trace, phases.join(", "))];
        lines.extend(self.live.lines());
        if self.cut > 0 {
            lines.push(format!("{} requests are longer than the model's context, and were cut to it", self.cut));
        }
        if !self.settled {
            lines.push(
                "another plan was adopted while requests were asked before the trace, twice: what they say is of both"
                    .into(),
            );
        }
        if self.replanned {
            lines
                .push("another plan was adopted meanwhile: the simulator has the one that was in force longest".into());
        }
        lines.push(self.drifted());
        lines.push(format!(
            "a step takes {} beside its layers, a request beside its steps {} to its first token and {} to its end, by those asked alone",
            time(overheads.step.0),
            time(overheads.request.0),
            time(overheads.whole.0)
        ));
        lines.extend(self.signed());
        lines.push(format!(
            "a step in which a prompt begins takes {} more than others do beside their layers",
            time(calibration.prompt_step.0)
        ));
        lines.push(self.grown());
        lines.push(format!(
            "beside steps {:.2} processors are used while nothing is asked, and {} of one for each request and {} for each token",
            overheads.idle,
            time(overheads.asked.0),
            time(overheads.token.0)
        ));
        lines.push(self.contended());
        lines.extend(self.oversubscribed().into_iter().map(|(each, prompts, answers)| {
            format!("{each:.2} threads a processor take {prompts:.2} times as long as their share says for prompts, {answers:.2} for answers")
        }));
        lines.extend(self.crowded());
        lines.push(format!(
            "peers used {:.2} of {processors} processors, the simulator's computed on {busy:.2}",
            self.processors.peers
        ));
        lines.extend(self.disturbed());
        if let Some((live, simulated)) = self.both() {
            let term = |term: LatencyTerm| {
                format!("{} {} and {}", term.words(), time(live.of(term)), time(simulated.of(term)))
            };
            let all: Vec<String> = LatencyTerm::ALL.into_iter().map(term).collect();
            lines.push(format!("on average a request's time went, live and simulated, into {}", all.join(", ")));
        }
        lines
    }

    /// That the machine was as fast behind the trace as before it, or not.
    fn drifted(&self) -> String {
        match self.behind {
            Some(times) => format!(
                "requests alone took {times:.2} times as long behind the trace as before it: what they say is of both"
            ),
            None => "requests were asked alone before the trace only: another plan is in force behind it, or it was ended early"
                .into(),
        }
    }

    /// What of that was taken for nought because it was measured to be less.
    fn signed(&self) -> Option<String> {
        let SignedOverheads { step, request, whole } = self.simulated.calibration.signed;
        (step.min(request).min(whole) < 0.0).then(|| {
            let [step, request, whole] = [step, request, whole].map(time);
            format!(
                "that is with nothing for what is less: measured were {step} for a step, {request} to a first token and {whole} to an end"
            )
        })
    }

    /// What longer prompts were measured to take.
    fn grown(&self) -> String {
        let Some(growth) = self.simulated.calibration.growth else {
            return "prompts are not known to grow otherwise than profiles say: those of another length were not asked alone, or say nothing"
                .into();
        };
        let PromptGrowth { tokens: [usual, longer], live, simulated, times } = growth;
        format!(
            "prompts of {longer} tokens take {} longer than those of {usual}, by profiles {}: what grows with them takes {times:.2} times \
             as long as profiles say",
            time(live),
            time(simulated)
        )
    }

    /// Processors that computed at once, and how many times as long as alone prompts took then, and steps of answers.
    fn contention(&self) -> Vec<(f64, f64, f64)> {
        let Contention { prompts, answers, .. } = &self.simulated.contention;
        let mut busy: Vec<f64> = prompts.points().iter().chain(answers.points()).map(|(busy, _)| *busy).collect();
        busy.sort_by(f64::total_cmp);
        busy.dedup();
        busy.into_iter().map(|busy| (busy, prompts.at(busy), answers.at(busy))).collect()
    }

    /// Threads a processor, and so many times as long as their share says prompts took then, and steps of answers.
    fn oversubscribed(&self) -> Vec<(f64, f64, f64)> {
        let Oversubscription { prompts, answers } = &self.simulated.contention.oversubscribed;
        let mut each: Vec<f64> = prompts.points().iter().chain(answers.points()).map(|(each, _)| *each).collect();
        each.sort_by(f64::total_cmp);
        each.dedup();
        each.into_iter().map(|each| (each, prompts.at(each), answers.at(each))).collect()
    }

    /// What is lost side by side, in words.
    fn contended(&self) -> String {
        let one = |(busy, prompts, answers): (f64, f64, f64)| {
            format!(
                "{busy} processors that compute at once take {prompts:.2} times as long for prompts, {answers:.2} for answers"
            )
        };
        let all: Vec<String> = self.contention().into_iter().map(one).collect();
        match all[..] {
            [] => "no peers were seen to compute side by side: what they lose to each other is not simulated".into(),
            _ => format!("beside a peer alone, {}", all.join("; ")),
        }
    }

    /// That something else computed on this machine, where it was enough to be seen.
    fn disturbed(&self) -> Option<String> {
        let others = self.processors.others.filter(|others| *others > DISTURBING * self.simulated.processors)?;
        Some(format!(
            "other programs used {others:.2} processors meanwhile, of which the simulator knows nothing: on a machine that has nothing \
             else to do figures are nearer to each other"
        ))
    }

    /// What requests at once took for which there are not processors enough.
    fn crowded(&self) -> Option<String> {
        let CrowdComparison { at_once, times } = self.simulated.crowd.as_ref()?;
        let one = |CrowdTime { metric, share, live, simulated }: &CrowdTime| {
            format!("{} P{:.0} {} and {}", metric.words(), share * 100.0, time(*live), time(*simulated))
        };
        let all: Vec<String> = times.iter().map(one).collect();
        Some(format!(
            "{at_once} at once, more than there are processors for, took, live and simulated, {}",
            all.join(", ")
        ))
    }

    /// Where requests' time went, live and simulated.
    fn both(&self) -> Option<(LatencyTerms, LatencyTerms)> {
        let SimulatedReplay { outcome, calibration, .. } = &self.simulated;
        Some((self.terms?, LatencyTerms::simulated(outcome, calibration.overheads.whole.0)))
    }

    /// By which term a figure is most likely off.
    fn likely(&self, f: &Figure) -> Option<LatencyTerm> {
        let (live, simulated) = self.both()?;
        live.likely(&simulated, f.metric, f.ratio())
    }

    /// What of each that is further off than it should be the likely reason is.
    pub fn reasons(&self) -> Vec<String> {
        let reason = |f: &Figure| match (self.likely(f), self.both()) {
            (Some(term), Some((live, simulated))) => {
                let (live, simulated) = (time(live.of(term)), time(simulated.of(term)));
                format!("{}: most likely by {}, {live} live and {simulated} simulated on average", f.name, term.words())
            }
            (_, None) => format!("{}: its gateway has counted no requests, so that nothing is known of why", f.name),
            (None, Some(_)) => format!("{}: on average no part of a request's time differs that way", f.name),
        };
        self.beyond(None).iter().map(reason).collect()
    }

    /// A row for each figure.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let head = ["", "LIVE", "SIMULATED", "SIMULATED/LIVE"].map(String::from).to_vec();
        let row = |f: Figure| {
            let (live, simulated, ratio) = (f.shown(f.live), f.shown(f.simulated), format!("{:.3}", f.ratio()));
            vec![f.name, live, simulated, ratio]
        };
        std::iter::once(head).chain(self.figures().into_iter().map(row)).collect()
    }

    /// What is further off than it should be.
    pub fn verdict(&self) -> String {
        let beyond: Vec<String> = self.beyond(None).iter().map(|f| format!("{} {:.3}", f.name, f.ratio())).collect();
        let (times, throughput) = (TIMES * 100.0, THROUGHPUT * 100.0);
        if beyond.is_empty() {
            format!(
                "within {times:.0} % at P50 and P90 of first tokens and answers, within {throughput:.0} % of throughput"
            )
        } else {
            format!("further off than {times:.0} %, or {throughput:.0} % of throughput: {}", beyond.join(", "))
        }
    }

    fn beyond(&self, most: Option<f64>) -> Vec<Figure> {
        let is_beyond = |f: &Figure| f.most.is_some_and(|own| f.off().is_nan() || f.off() > most.unwrap_or(own));
        self.figures().into_iter().filter(is_beyond).collect()
    }

    /// Fails where the simulator is further off than that.
    pub fn held(&self, most: Option<f64>) -> Result<(), Exit> {
        let Some(most) = most else { return Ok(()) };
        match self.beyond(Some(most)).first() {
            Some(f) => {
                let what = format!("{}: the simulator says {:.3} of what was measured", f.name, f.ratio());
                Err(Exit::new(ExitKind::Other, format!("{what}; --most-off {}", most * 100.0)))
            }
            None => Ok(()),
        }
    }

    pub fn json(&self) -> Value {
        let figure = |f: &Figure| {
            json!({
                "figure": f.name, "live": f.live, "simulated": f.simulated, "ratio": f.ratio(),
                "unit": if f.metric.is_some() { "s" } else { "1/s" }, "most_off": f.most,
                "likely": self.beyond(None).contains(f).then(|| self.likely(f).map(LatencyTerm::name)).flatten(),
            })
        };
        let figures: Vec<Value> = self.figures().iter().map(figure).collect();
        let terms = self.both().map(|(live, simulated)| {
            let both = |term: LatencyTerm| {
                let (live, simulated) = (live.of(term), simulated.of(term));
                json!({ "term": term.name(), "live_ms": live * 1e3, "simulated_ms": simulated * 1e3 })
            };
            LatencyTerm::ALL.map(both)
        });
        let groups: Vec<Value> =
            self.simulated.groups.iter().map(|(phase, count)| json!({ "phase": phase, "groups": count })).collect();
        let contention: Vec<Value> = self
            .contention()
            .into_iter()
            .map(|(busy, prompts, answers)| json!({ "processors": busy, "prompts": prompts, "answers": answers }))
            .collect();
        let oversubscribed: Vec<Value> = self
            .oversubscribed()
            .into_iter()
            .map(|(each, prompts, answers)| json!({ "threads_each": each, "prompts": prompts, "answers": answers }))
            .collect();
        let crowd = self.simulated.crowd.as_ref().map(|CrowdComparison { at_once, times }| {
            let time = |t: &CrowdTime| {
                let name = format!("p{:.0}_{}", t.share * 100.0, t.metric.name());
                json!({ "figure": name, "live_ms": t.live * 1e3, "simulated_ms": t.simulated * 1e3 })
            };
            json!({ "at_once": at_once, "times": times.iter().map(time).collect::<Vec<Value>>() })
        });
        let Calibration { overheads, signed, growth, prompt_step } = &self.simulated.calibration;
        let grown = growth.map(|growth| {
            let (live, simulated) = (growth.live * 1e3, growth.simulated * 1e3);
            json!({ "tokens": growth.tokens, "live_ms": live, "simulated_ms": simulated, "times": growth.times })
        });
        json!({
            "trace": self.trace, "cut_to_context": self.cut, "settled": self.settled, "replanned": self.replanned,
            "behind_over_before": self.behind, "groups": groups,
            "step_overhead_ms": overheads.step.0 * 1e3,
            "request_overhead_ms": overheads.request.0 * 1e3,
            "whole_overhead_ms": overheads.whole.0 * 1e3,
            "step_measured_ms": signed.step * 1e3, "request_measured_ms": signed.request * 1e3,
            "whole_measured_ms": signed.whole * 1e3, "prompt_step_ms": prompt_step.0 * 1e3, "prompt_growth": grown,
            "idle_processors": overheads.idle, "token_processor_ms": overheads.token.0 * 1e3,
            "request_processor_ms": overheads.asked.0 * 1e3, "contention": contention,
            "oversubscribed": oversubscribed, "crowd": crowd,
            "processors": self.simulated.processors, "processors_used": self.processors.peers,
            "processors_of_others": self.processors.others,
            "processors_simulated": self.simulated.busy, "simulated_ended": self.simulated.ended(),
            "terms": terms, "figures": figures, "within": self.beyond(None).is_empty(), "live": self.live.json(&Value::Null),
        })
    }

    /// Both over the part of requests that they are not passed by.
    pub fn svg(&self) -> String {
        let mut series: Vec<(String, Vec<f64>)> = Vec::new();
        for metric in [Metric::Ttft, Metric::Itl, Metric::E2el] {
            let live = |percent: &f64| self.live.at(metric, percent / 100.0).unwrap_or(f64::NAN);
            let simulated = |percent: &f64| self.simulated.at(metric, percent / 100.0);
            series.push((format!("{} live", metric.name()), DRAWN.iter().map(live).collect()));
            series.push((format!("{} simulated", metric.name()), DRAWN.iter().map(simulated).collect()));
        }
        let title = format!("{} live and simulated", self.trace);
        let (across, up) = ("percentile of requests", "time");
        Plot { title: &title, across, up, rates: &DRAWN, scale: Scale::Seconds, series: &series }.svg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::serve::{
        client::{RequestOutcome, Run},
        timed_answer::TimedAnswer,
    };
    use std::time::Duration;
    use tsnode_coordinator::{
        policy::routing::Asked,
        replay::machines::{self, Arrival, ContentionCurve, ReplayTrace},
    };
    use tsnode_protocol::{Phase, Seconds};

    const MS: Duration = Duration::from_millis(1);

    /// A hundred answers of five tokens, the n-th with its first token after n ms; in the simulator after so many times n.
    fn compared(times: f64) -> ReplayComparison {
        let answer = |n: u32| TimedAnswer {
            first: n * MS,
            whole: 2 * n * MS,
            gaps: vec![n * MS / 4; 4],
            prompt_tokens: Some(10),
            answer_tokens: Some(5),
            request: None,
        };
        let outcome = |n: u32| RequestOutcome { index: n as usize, late: MS, answer: Ok(answer(n)) };
        let run = Run {
            outcomes: (1..=100).map(outcome).collect(),
            took: Duration::from_secs(10),
            peak: 3,
            ..Run::default()
        };
        let trace = |n: u32, times: f64| {
            let (at, took) = (Seconds(0.0), Seconds(f64::from(n) * 1e-3 * times));
            let arrival = Arrival { at, asked: Asked::new(10, 5) };
            let (first, end) = (took, took * 2.0);
            ReplayTrace { arrival, route: None, prompt_start: at, first, answer_start: first, end, sending: at }
        };
        let outcome = |times: f64| machines::Outcome {
            traces: (1..=100).map(|n| trace(n, times)).collect(),
            busy: vec![0.5],
            end: Seconds(10.0),
            ..machines::Outcome::default()
        };
        let (terms, outcome) = (Some(LatencyTerms::simulated(&outcome(1.0), 0.0)), outcome(times));
        let groups = vec![(Phase::Mixed, 2), (Phase::Decode, 0)];
        let (calibration, contention) = (Calibration::default(), Contention::default());
        let (processors, busy, leaders, crowd) = (2.0, 0.5, Vec::new(), None);
        let simulated = SimulatedReplay { calibration, contention, crowd, groups, processors, busy, outcome, leaders };
        let live = Report::new(&run, |_| 10, Vec::new());
        let (settled, replanned, behind) = (true, false, Some(1.25));
        let processors = ProcessorUse { peers: 0.7, others: Some(0.05) };
        let trace = "a.csv".into();
        ReplayComparison { trace, cut: 1, live, terms, simulated, settled, replanned, behind, processors }
    }

    #[test]
    fn every_figure_stands_beside_the_simulators() {
        let alike = compared(1.0);
        let rows = alike.rows();
        // Four times at three percentiles, requests and tokens; of gaps nothing was recorded in the simulator.
        assert_eq!((rows.len(), rows[0][3].as_str()), (1 + 12 + 2, "SIMULATED/LIVE"));
        assert_eq!(rows[1], ["first token (ttft) P50", "50.5 ms", "50.5 ms", "1.000"]);
        assert!(alike.verdict().starts_with("within 10 %"), "{}", alike.verdict());
        assert!(alike.held(Some(0.01)).is_ok());
        assert!(alike.lines()[0].contains("a.csv on groups: 2 mixed"), "{:?}", alike.lines());
        assert!(alike.lines().iter().any(|line| line.contains("were cut to it")));
        assert!(!alike.lines().iter().any(|line| line.starts_with("another plan")));
        let unsettled = ReplayComparison { settled: false, ..compared(1.0) };
        assert!(unsettled.lines().iter().any(|line| line.starts_with("another plan") && line.ends_with("of both")));
        assert_eq!(alike.json()["within"], json!(true));
        assert_eq!(alike.svg().matches("stroke-width=\"2\" points=").count(), 6, "lines of values");
        assert_eq!((alike.reasons(), &alike.json()["figures"][0]["likely"]), (vec![], &Value::Null));
        let whole = "on average a request's time went, live and simulated, into queueing ";
        assert!(alike.lines().last().is_some_and(|line| line.starts_with(whole)), "{:?}", alike.lines());
    }

    #[test]
    fn what_is_too_far_off_is_named() {
        let slower = compared(1.2);
        let verdict = slower.verdict();
        assert!(verdict.contains("first token (ttft) P50 1.200") && verdict.contains("(e2el) P90 1.200"), "{verdict}");
        assert!(!verdict.contains("P99") && !verdict.contains("requests/s"), "{verdict}");
        assert!(slower.held(None).is_ok() && slower.held(Some(0.25)).is_ok());
        let said = slower.held(Some(0.15)).unwrap_err().to_string();
        assert!(said.contains("1.200 of what was measured"), "{said}");
        assert_eq!(slower.json()["within"], json!(false));
        let reasons = slower.reasons();
        let first =
            "first token (ttft) P50: most likely by steps of prompts, 50.5 ms live and 60.6 ms simulated on average";
        assert!(reasons.len() == 4 && reasons[0] == first, "{reasons:?}");
        assert_eq!(slower.json()["figures"][0]["likely"], json!("prompt_steps"));
        let unknown = ReplayComparison { terms: None, ..slower };
        assert!(unknown.reasons()[0].contains("has counted no requests"), "{:?}", unknown.reasons());
    }

    #[test]
    fn what_a_crowd_took_is_told_beside_what_was_simulated_of_it() {
        let mut found = compared(1.0);
        assert_eq!((found.crowded(), &found.json()["crowd"]), (None, &Value::Null));
        let time = |metric, share, live| CrowdTime { metric, share, live, simulated: live * 0.5 };
        let times = vec![time(Metric::Ttft, 0.5, 0.25), time(Metric::E2el, 0.9, 2.5)];
        found.simulated.crowd = Some(CrowdComparison { at_once: 8, times });
        let said = "8 at once, more than there are processors for, took, live and simulated, first token (ttft) P50 250.0 ms and 125.0 ms, \
                    whole answer (e2el) P90 2.50 s and 1.25 s";
        assert!(found.lines().iter().any(|line| line == said), "{:?}", found.lines());
        let told = json!({ "figure": "p90_e2el", "live_ms": 2500.0, "simulated_ms": 1250.0 });
        assert_eq!(found.json()["crowd"]["times"][1], told);
    }

    #[test]
    fn what_was_measured_alone_is_told_before_anything_is_left_out_of_it() {
        let mut found = compared(1.0);
        let has = |found: &ReplayComparison, begin: &str| found.lines().iter().any(|line| line.starts_with(begin));
        assert!(!has(&found, "that is with nothing") && has(&found, "prompts are not known to grow"));
        assert_eq!(found.json()["prompt_growth"], Value::Null);
        let signed = SignedOverheads { step: -1e-3, request: 2e-3, whole: 2e-3 };
        let growth = Some(PromptGrowth { tokens: [900, 2300], live: 0.31, simulated: 0.28, times: 1.125 });
        found.simulated.calibration = Calibration { signed, growth, ..Calibration::default() };
        assert!(has(
            &found,
            "that is with nothing for what is less: measured were -1.0 ms for a step, 2.0 ms to a first"
        ));
        let said = "prompts of 2300 tokens take 310.0 ms longer than those of 900, by profiles 280.0 ms: what grows with them takes 1.12";
        assert!(has(&found, said), "{:?}", found.lines());
        assert_eq!((&found.json()["step_measured_ms"], &found.json()["step_overhead_ms"]), (&json!(-1.0), &json!(0.0)));
        assert_eq!(found.json()["prompt_growth"]["times"], json!(1.125));
    }

    #[test]
    fn that_the_machine_was_slower_behind_the_trace_is_told() {
        let found = compared(1.0);
        let has = |found: &ReplayComparison, words: &str| found.lines().iter().any(|line| line.contains(words));
        assert!(has(&found, "took 1.25 times as long behind the trace") && !has(&found, "before the trace only"));
        assert_eq!(found.json()["behind_over_before"], json!(1.25));
        let cut = ReplayComparison { behind: None, ..found };
        assert!(has(&cut, "before the trace only") && cut.json()["behind_over_before"].is_null());
    }

    #[test]
    fn other_programs_on_the_machine_are_told() {
        let mut found = compared(1.0);
        let is_told =
            |found: &ReplayComparison| found.lines().iter().any(|line| line.starts_with("other programs used"));
        assert!(!is_told(&found), "a machine does this and that");
        found.processors.others = Some(0.4);
        assert!(is_told(&found) && found.json()["processors_of_others"] == json!(0.4));
        found.processors.others = None;
        assert!(!is_told(&found) && found.json()["processors_of_others"].is_null());
    }

    #[test]
    fn what_peers_lose_to_each_other_is_told() {
        let mut found = compared(1.0);
        let of = |found: &ReplayComparison| found.lines().into_iter().find(|line| line.contains("side by side"));
        assert!(of(&found).is_some_and(|line| line.starts_with("no peers were seen")));
        assert_eq!(found.json()["contention"], json!([]));
        let curve = |points: &[(f64, f64)]| ContentionCurve::measured(1.0, points.iter().copied());
        let (prompts, answers) = (curve(&[(2.0, 1.5), (4.0, 2.5)]), curve(&[(2.0, 1.25)]));
        let oversubscribed = Oversubscription { prompts: curve(&[(4.0, 1.1)]), answers: curve(&[]) };
        found.simulated.contention = Contention { prompts, answers, oversubscribed };
        let line = "beside a peer alone, 2 processors that compute at once take 1.50 times as long for prompts, 1.25 for answers; \
                    4 processors that compute at once take 2.50 times as long for prompts, 1.25 for answers";
        assert!(of(&found).is_none() && found.lines().iter().any(|told| told == line), "{:?}", found.lines());
        let told = found.json()["contention"][0].clone();
        assert_eq!(told, json!({ "processors": 2.0, "prompts": 1.5, "answers": 1.25 }));
        let line = "4.00 threads a processor take 1.10 times as long as their share says for prompts, 1.00 for answers";
        assert!(found.lines().iter().any(|told| told == line), "{:?}", found.lines());
        assert_eq!(found.json()["oversubscribed"][0]["prompts"], json!(1.1));
    }
}
