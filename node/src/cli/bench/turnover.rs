//! `tsnode bench turnover`: demand that goes over from one model to another, and what clients of both see before, during and after.

use super::serve::{
    arrivals::{Arrivals, DrawnLengths, PlannedRequest, drawn},
    bar,
    client::{BenchTarget, Endpoint, LoadBounds, Run, interrupted, load},
    load_args::{self, LoadArgs, number, tokens},
    prompts::{PromptContent, Prompts},
    report::{GoodputTarget, reasons},
};
use crate::{
    cli::{
        ask::PeerClient,
        exit::{Exit, ExitKind},
        output, verb, whole,
    },
    config::{Settings, values},
};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;
use tsnode_simulator::plot::{Plot, Scale};

/// Parts of a run, each as long: the first model is busy in one, the second in the others.
const PARTS: [&str; 3] = ["before", "during", "after"];
/// Points that are drawn of each part.
const POINTS: u32 = 5;
/// Most requests of a model.
const MOST: f64 = 1e5;
/// How long answers are waited for once all requests are sent: gateways wait ten minutes for a model that has to be loaded.
const WAIT: Duration = Duration::from_secs(660);

pub(super) fn command() -> Command {
    let example =
        "tsnode bench turnover --model llama3.2:1b --model Qwen/Qwen3-0.6B --goodput e2el:20000 --svg turnover.svg";
    verb("turnover", "Demand that goes over from one model to another: what of both is in time", example)
        .args(load_args::server())
        .arg(
            number(
                "model",
                "NAME",
                "The model that is busy first, and then the one that is busy after it: say it twice",
            )
            .action(ArgAction::Append)
            .required(true),
        )
        .args(demand())
        .arg(load_args::goodput().required(true))
        .args(load_args::shown("Draw what of each model is in time (SVG)"))
}

fn demand() -> Vec<Arg> {
    let rate = |name, help| number(name, "R", help).value_parser(values::above_0);
    vec![
        rate("busy-rate", "Requests a second of the model that is busy").default_value("1"),
        rate("idle-rate", "Requests a second of the other").default_value("0.05"),
        number("seconds", "S", "Before demand goes over, during it, and after")
            .value_parser(whole(10_u64..=7200))
            .default_value("120"),
        tokens("input-len", "Tokens of a prompt").default_value("64"),
        tokens("output-len", "Tokens of an answer").default_value("32"),
        load_args::concurrency("Most requests of a model at once"),
        load_args::seed("Of arrivals and prompts"),
    ]
}

pub(super) async fn run(settings: &Settings, matches: &ArgMatches) -> Result<(), Exit> {
    let (wish, [first, second]) = (TurnoverWish::of(matches)?, named(matches)?);
    let target = |model: String| {
        let peer = PeerClient::find(settings, matches)?;
        Ok::<_, Exit>(BenchTarget { peer, endpoint: Endpoint::Completions, model, temperature: None, ignore_eos: true })
    };
    let targets = [target(first)?, target(second)?];
    let base = targets[0].peer.base().to_owned();
    let planned = [wish.planned(0), wish.planned(1)];
    let bar = bar(planned.iter().map(Vec::len).sum(), wish.load.hides_bar);
    bar.set_message("two models");
    let ended = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let watch = |n: usize, count: usize| {
        ended[n].store(count, Ordering::Relaxed);
        bar.set_position(ended.iter().map(|count| count.load(Ordering::Relaxed) as u64).sum());
    };
    let [one, other] = targets;
    let served = tokio::join!(
        wish.served(one, &planned[0], 0, |count, _| watch(0, count)),
        wish.served(other, &planned[1], 1, |count, _| watch(1, count)),
    );
    bar.finish_and_clear();
    let served: [ServedRequests; 2] = served.into();
    if let Some(file) = &wish.load.svg {
        std::fs::write(file, wish.svg(&served, &base)).map_err(|e| Exit::file(ExitKind::Other, file, &e))?;
    }
    if wish.load.json {
        output::print_json(&wish.json(&served, &base))?;
    } else {
        output::table(&wish.rows(&served))?;
        for ServedRequests { model, reasons, cut, unsent, .. } in &served {
            reasons.iter().for_each(|(why, count)| say!("  {count} of {model} failed: {why}"));
            if cut + unsent > 0 {
                say!("  the run was ended early: {cut} of {model} were under way, {unsent} not sent");
            }
        }
    }
    match served.iter().find(|served| served.answered == 0) {
        Some(ServedRequests { model, .. }) => {
            Err(Exit::new(ExitKind::Request, format!("no request for {model} was answered")))
        }
        None => Ok(()),
    }
}

fn named(matches: &ArgMatches) -> Result<[String; 2], Exit> {
    let names: Vec<String> = matches.get_many::<String>("model").into_iter().flatten().cloned().collect();
    match <[String; 2]>::try_from(names) {
        Ok([first, second]) if first != second => Ok([first, second]),
        _ => Err(Exit::new(ExitKind::Usage, "--model: name two models, the one that is busy first before the other")),
    }
}

/// What is asked for.
struct TurnoverWish {
    part: Duration,
    busy: f64,
    idle: f64,
    lengths: DrawnLengths,
    load: LoadArgs,
}

impl TurnoverWish {
    fn of(matches: &ArgMatches) -> Result<Self, Exit> {
        let rate = |name: &str| matches.get_one::<f64>(name).copied().unwrap_or(1.0);
        let tokens = |name: &str| matches.get_one::<u32>(name).copied().unwrap_or(1);
        let wish = Self {
            part: Duration::from_secs(matches.get_one("seconds").copied().unwrap_or(10)),
            busy: rate("busy-rate"),
            idle: rate("idle-rate"),
            lengths: DrawnLengths { prompt: tokens("input-len"), answer: tokens("output-len"), ratio: 0.0 },
            load: LoadArgs::of(matches)?,
        };
        let requests = wish.busy.max(wish.idle) * 2.0 * wish.part.as_secs_f64();
        if requests > MOST {
            let what =
                format!("{requests:.0} requests of a model are more than {MOST:.0}: ask for fewer, or for less time");
            return Err(Exit::new(ExitKind::Usage, what));
        }
        Ok(wish)
    }

    /// Requests for the first model, or the second.
    fn planned(&self, n: usize) -> Vec<PlannedRequest> {
        let (before, then) = if n == 0 { (self.busy, self.idle) } else { (self.idle, self.busy) };
        let (mut all, mut from) = (Vec::new(), Duration::ZERO);
        for (piece, (rate, length)) in [(before, self.part), (then, 2 * self.part)].into_iter().enumerate() {
            let expected = rate * length.as_secs_f64();
            // So many come in no more than that but once in very many runs.
            let enough = (expected + 10.0 * expected.sqrt() + 20.0) as usize;
            let seed = self.load.seed.wrapping_mul(4).wrapping_add((2 * n + piece) as u64);
            let drawn = drawn(Arrivals::Gamma { rate, shape: 1.0 }, self.lengths, enough, seed);
            let drawn = drawn.into_iter().take_while(|request| request.at < length);
            all.extend(drawn.map(|request| PlannedRequest { at: request.at + from, ..request }));
            from += length;
        }
        all
    }

    async fn served(
        &self,
        target: BenchTarget,
        planned: &[PlannedRequest],
        n: usize,
        watch: impl Fn(usize, usize),
    ) -> ServedRequests {
        let prompts = Prompts { form: PromptContent::Tokens, shared: 0, seed: self.load.seed.wrapping_add(n as u64) };
        let bounds = LoadBounds { concurrency: self.load.concurrency, longest: 3 * self.part + WAIT };
        let target = Arc::new(target);
        let run = load(&target, prompts, planned, bounds, interrupted(), watch).await;
        ServedRequests::new(target.model.clone(), planned, &run, &self.load.goodput)
    }

    fn rows(&self, served: &[ServedRequests]) -> Vec<Vec<String>> {
        let mut rows = vec![["MODEL", "REQUESTS", "BEFORE", "DURING", "AFTER", "FAILED"].map(String::from).to_vec()];
        for served in served {
            let mut row = vec![served.model.clone(), served.requests.len().to_string()];
            row.extend(self.parts(served).map(|part| part.map_or("-".into(), |part| format!("{:.1} %", part * 100.0))));
            row.push(served.failed.to_string());
            rows.push(row);
        }
        rows
    }

    /// What of its requests was in time in each part.
    fn parts(&self, served: &ServedRequests) -> [Option<f64>; 3] {
        [0, 1, 2].map(|n| served.attainment(self.part * n, self.part * (n + 1)))
    }

    fn json(&self, served: &[ServedRequests], base: &str) -> Value {
        let model = |served: &ServedRequests| {
            let parts = PARTS.into_iter().zip(self.parts(served)).map(|(name, part)| (name.to_owned(), json!(part)));
            let errors = served.reasons.iter().map(|(why, count)| json!({ "reason": why, "requests": count }));
            json!({
                "model_id": served.model, "num_prompts": served.requests.len(), "completed": served.answered,
                "failed": served.failed, "cut_short": served.cut, "not_sent": served.unsent,
                "attainment": Value::Object(parts.collect()), "errors": errors.collect::<Value>(),
            })
        };
        json!({
            "base_url": base, "part_seconds": self.part.as_secs(), "busy_rate": self.busy, "idle_rate": self.idle,
            "seed": self.load.seed, "goodput": self.load.goodput.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "models": served.iter().map(model).collect::<Value>(),
        })
    }

    /// What of each model is in time, over the times at which requests were due.
    fn svg(&self, served: &[ServedRequests], base: &str) -> String {
        let window = self.part / POINTS;
        let windows = || (0..3 * POINTS).map(move |n| (window * n, window * (n + 1)));
        let ends: Vec<f64> = windows().map(|(_, end)| end.as_secs_f64().round()).collect();
        let line = |served: &ServedRequests| {
            let values = windows().map(|(from, to)| served.attainment(from, to).unwrap_or(f64::NAN)).collect();
            (served.model.clone(), values)
        };
        let series: Vec<(String, Vec<f64>)> = served.iter().map(line).collect();
        let title = format!("in time at {base}; demand goes over at {} s", self.part.as_secs());
        let (across, up) = ("time (s)", "requests in time");
        Plot { title: &title, across, up, rates: &ends, scale: Scale::Share, series: &series }.svg()
    }
}

/// What became of a model's requests.
struct ServedRequests {
    model: String,
    /// When each was due that was before the run ended, and whether it kept all targets.
    requests: Vec<(Duration, bool)>,
    answered: usize,
    failed: usize,
    /// Those that were under way when the run ended, and those that were not sent.
    cut: usize,
    unsent: usize,
    /// Why others failed, the likeliest first.
    reasons: Vec<(String, usize)>,
}

impl ServedRequests {
    fn new(model: String, planned: &[PlannedRequest], run: &Run, targets: &[GoodputTarget]) -> Self {
        // Of what somebody would have asked for who ended the run nothing is known.
        let due = planned.iter().take_while(|request| request.at <= run.took);
        let mut requests: Vec<(Duration, bool)> = due.map(|request| (request.at, false)).collect();
        let mut answered = 0;
        for outcome in &run.outcomes {
            if let (Ok(answer), Some((_, is_kept))) = (&outcome.answer, requests.get_mut(outcome.index)) {
                // Who finds all places taken waits as well.
                *is_kept = targets.iter().all(|target| target.is_kept_by(answer, outcome.late));
                answered += 1;
            }
        }
        let failed = run.outcomes.len() - answered;
        Self { model, requests, answered, failed, cut: run.cut, unsent: run.unsent, reasons: reasons(&run.outcomes) }
    }

    /// Part in time of the requests that were due from then to before then; none where there were none.
    fn attainment(&self, from: Duration, to: Duration) -> Option<f64> {
        let due = || self.requests.iter().filter(move |(at, _)| (from..to).contains(at));
        let all = due().count();
        (all > 0).then(|| due().filter(|(_, is_kept)| *is_kept).count() as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::serve::{
        client::RequestOutcome,
        timed_answer::{Failure, TimedAnswer},
    };

    fn wish() -> TurnoverWish {
        TurnoverWish {
            part: Duration::from_secs(100),
            busy: 2.0,
            idle: 0.1,
            lengths: DrawnLengths { prompt: 8, answer: 4, ratio: 0.0 },
            load: LoadArgs {
                seed: 7,
                concurrency: 1,
                goodput: vec!["e2el:1s".parse().unwrap()],
                svg: None,
                hides_bar: true,
                json: false,
            },
        }
    }

    #[test]
    fn one_model_is_busy_before_and_the_other_after() {
        let counts = [0, 1].map(|n| {
            let planned = wish().planned(n);
            assert!(planned.is_sorted_by_key(|request| request.at));
            assert!(planned.iter().all(|request| request.at < Duration::from_secs(300)));
            let before = planned.iter().filter(|request| request.at < wish().part).count();
            (before, planned.len() - before)
        });
        let [(busy, idle), (little, much)] = counts;
        assert!((150..250).contains(&busy) && (320..480).contains(&much), "{counts:?}");
        assert!((1..60).contains(&idle) && (1..40).contains(&little), "{counts:?}");
        let mut other = wish();
        other.load.seed = 8;
        assert_ne!(wish().planned(0), other.planned(0));
    }

    #[test]
    fn what_is_late_fails_or_never_ends_is_not_in_time() {
        let planned: Vec<PlannedRequest> =
            (0..7).map(|n| PlannedRequest { at: Duration::from_secs(50 * n), prompt: 8, answer: 4 }).collect();
        let took = |seconds| Ok(TimedAnswer { whole: Duration::from_secs(seconds), ..TimedAnswer::default() });
        let outcome = |(index, late, answer)| RequestOutcome { index, late: Duration::from_millis(late), answer };
        let outcomes = [(0, 0, took(1)), (1, 1, took(1)), (2, 0, took(2)), (3, 0, Err(Failure::NoEnd))];
        let outcomes = outcomes.map(outcome).into_iter().collect();
        // Somebody ended it when five had been due.
        let run = Run { outcomes, cut: 1, unsent: 2, took: Duration::from_secs(220), ..Run::default() };
        let served = ServedRequests::new("a".into(), &planned, &run, &wish().load.goodput);
        assert_eq!((served.answered, served.failed, served.reasons.len(), served.requests.len()), (3, 1, 1, 5));
        assert_eq!(wish().parts(&served), [Some(0.5), Some(0.0), Some(0.0)], "late for want of a place is late");
        let ended = Run { took: Duration::from_secs(190), ..Run::default() };
        assert_eq!(wish().parts(&ServedRequests::new("a".into(), &planned, &ended, &[]))[2], None, "nothing was due");
        assert_eq!(served.attainment(Duration::from_secs(1), Duration::from_secs(49)), None);
        let served = [served];
        assert_eq!(wish().rows(&served)[1], ["a", "5", "50.0 %", "0.0 %", "0.0 %", "1"]);
        let document = wish().json(&served, "http://a");
        assert_eq!(document["models"][0]["attainment"]["before"], 0.5);
        assert!(wish().svg(&served, "http://a").contains("\na\n"));
    }
}
