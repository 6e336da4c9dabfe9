//! `tsnode simulate provision`: how many machines of which kind.

mod asked;

use self::asked::{Fleet, ProvisionQuery};
use super::stopping::stoppable;
use crate::cli::{
    exit::{Exit, ExitKind},
    is_set, json, output,
    plan::asked::usage,
    verb,
};
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tsnode_simulator::{
    plot::mixes,
    provisioning::{
        Aim, Choice, Design, MixBudget, ProvisioningAnswer, ProvisioningProgress, Question, QuestionError, Tried,
        kinds::Measure,
        provision,
        targets::{MissedTarget, TargetTime},
    },
};

pub(super) fn command() -> Command {
    let example = "tsnode simulate provision --model LLaMA-30B --kinds 4xA40,2xA100 --workload coding --rate 10\n  \
                   tsnode simulate provision --model LLaMA-30B --kinds 4xA40,2xA100 --budget-cost 20 --aim throughput";
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    verb("provision", "How many machines of which kind are cheapest, or carry the most", example)
        .arg(
            value("plan-model", "NAME", "Model by name (LLaMA-30B …) or a config.json [default: LLaMA-30B]")
                .long("model"),
        )
        .arg(value("kinds", "LIST", "Machines, as 8xA100,4xA40:1.6:1200: devices, $/h, W [default: 8xA100,8xH100]"))
        .arg(value("workload", "NAME", "coding, conversation, or a trace's CSV file [default: conversation]"))
        .arg(value("rate", "R", "Requests a second [default: 3]"))
        .arg(value(
            "aim",
            "AIM",
            "cheapest, power, fewest (machines), or throughput within budgets [default: cheapest]",
        ))
        .arg(value("budget-cost", "$/h", "Spend no more"))
        .arg(value("budget-power", "W", "Take no more power"))
        .arg(value("budget-machines", "N", "Take no more machines"))
        .arg(value("slo", "TARGETS", "ttft=, tpot=, e2e=, or splitwise: its nine targets [default: e2e=5x]"))
        .arg(value("share", "PART", "Of the requests that must keep the targets [default: 0.9]"))
        .arg(value("times", "FILE", "Times of iterations from a table like Splitwise's, instead of closed forms"))
        .arg(value(
            "alone",
            "NAME",
            "Hardware of the table that --slo splitwise compares with [default: the first kind's]",
        ))
        .arg(value("link", "GBIT", "Between two machines, Gbit/s [default: 200]"))
        .arg(value("seconds", "S", "Simulate so much traffic to confirm a mix, a quarter to find it [default: 120]"))
        .arg(value("step", "R", "Requests a second between two rates tried [default: about a fiftieth]"))
        .arg(value("figures", "COLUMN", "GPU figures: vendor or paper [default: vendor]"))
        .arg(value("seed", "S", "Seed of the requests [default: 0]"))
        .arg(value("svg", "FILE", "Draw the mixes that were tried into this file"))
        .arg(crate::cli::switch("independent", "Draw prompts and answers of a trace independently, as Splitwise does"))
        .arg(json())
}

pub(super) async fn run(matches: &ArgMatches) -> Result<(), Exit> {
    let asked = ProvisionQuery::read(matches)?;
    let fleet = asked.fleet(matches)?;
    let svg = matches.get_one::<String>("svg").cloned();
    let is_json = is_set(matches, "json");
    // A signal ends the search with the best so far.
    let work = move |stopped: &AtomicBool| {
        let started = Instant::now();
        let answer = search(&fleet.question, stopped)?;
        if let Some(path) = svg {
            let drawn = mixes::svg(&fleet.question, &answer);
            std::fs::write(&path, drawn).map_err(|e| Exit::file(ExitKind::Other, &path, &e))?;
        }
        if answer.best.is_none() {
            return Err(nothing(&fleet, &answer, stopped));
        }
        if is_json { print_json(&fleet, &answer, started.elapsed()) } else { print(&fleet, &answer, started.elapsed()) }
    };
    stoppable(work).await
}

fn search(question: &Question, stopped: &AtomicBool) -> Result<ProvisioningAnswer, Exit> {
    let bar = indicatif::ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    let answer = provision(question, &|p: ProvisioningProgress| {
        let best = p.best.map_or(String::new(), |b| format!("; so far {}", words(question, &b)));
        bar.set_message(format!("{} mixes simulated, {}{best}", p.simulations, name(question, p.design)));
        stopped.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    answer.map_err(|error| {
        usage(match &error {
            QuestionError::Unknown { measure: Measure::Power, kind } => {
                format!("{error}: say it, as in --kinds {kind}:10.5:2400")
            }
            QuestionError::Unknown { kind, .. } => format!("{error}: say it, as in --kinds {kind}:10.5"),
            QuestionError::NoBudget => {
                format!("{error}: give --budget-cost, --budget-power or --budget-machines")
            }
            QuestionError::Number { .. } => error.to_string(),
        })
    })
}

/// Why no mix was found, and what to do.
fn nothing(fleet: &Fleet, answer: &ProvisioningAnswer, stopped: &AtomicBool) -> Exit {
    let question = &fleet.question;
    if !answer.finished {
        return Exit::new(ExitKind::Other, "stopped before a mix was found that keeps the targets");
    }
    let broken: Vec<(&Tried, MissedTarget)> = answer.designs.iter().filter_map(|d| Some((d, d.broken?))).collect();
    if let Some((tried, why)) = broken.first().filter(|_| broken.len() == answer.designs.len()) {
        let which = name(question, tried.design);
        return usage(format!(
            "no number of these machines keeps {}: {which}, a request at a time: {}; loosen --slo or --share, or give \
             faster --kinds",
            fleet.targets,
            explained(why)
        ));
    }
    let of_each = MixBudget { of: Measure::Machines, most: f64::from(question.machines) };
    let budgets = if question.budgets.is_empty() { vec![of_each] } else { question.budgets.clone() };
    let limits: Vec<String> = budgets.iter().map(limit).collect();
    let Aim::Least { rate, .. } = question.aim else {
        return usage(format!(
            "no mix within {} keeps {} at the lowest rate tried: raise the budget, or lower --step",
            limits.join(" and "),
            fleet.targets
        ));
    };
    let most = Question { aim: Aim::Most { step: asked::step(rate) }, budgets, ..question.clone() };
    let best = search(&most, stopped).ok().and_then(|a| a.best);
    let found = best.map_or("no rate that was tried is kept".to_owned(), |b| {
        format!("the most that was found is {} requests/s: {}", number(b.rate), words(question, &b))
    });
    usage(format!(
        "no mix within {} keeps {} at {rate} requests/s; {found}; raise {} or lower --rate",
        limits.join(" and "),
        fleet.targets,
        question.budgets.first().map_or("nothing", |b| flag(b.of)),
    ))
}

fn limit(budget: &MixBudget) -> String {
    match budget.of {
        Measure::Cost => format!("{} $/h", budget.most),
        Measure::Power => format!("{} W", budget.most),
        Measure::Machines => format!("{} machines", budget.most),
    }
}

fn flag(of: Measure) -> &'static str {
    match of {
        Measure::Cost => "--budget-cost",
        Measure::Power => "--budget-power",
        Measure::Machines => "--budget-machines",
    }
}

fn explained(broken: &MissedTarget) -> String {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let Some(time) = broken.time else {
        return format!("{} are in time, {} must be", percent(broken.got), percent(broken.want));
    };
    let what = match time {
        TargetTime::First => "first tokens",
        TargetTime::Token => "tokens",
        TargetTime::Whole => "answers",
    };
    format!(
        "{} of {what} come within {:.2} times the reference's time, which must be below {}",
        percent(broken.share),
        broken.got,
        broken.want
    )
}

fn name(question: &Question, design: Design) -> String {
    let (prompts, answers) = design.kinds();
    let (a, b) = (&question.kinds[prompts.0].name, &question.kinds[answers.0].name);
    match design {
        Design::Split { .. } => format!("prompts on {a}, answers on {b}"),
        Design::Together(_) => format!("both on {a}"),
    }
}

fn words(question: &Question, choice: &Choice) -> String {
    let (prompts, answers) = choice.design.kinds();
    let (a, b) = (&question.kinds[prompts.0].name, &question.kinds[answers.0].name);
    let (p, t) = (choice.mix.prompts, choice.mix.answers);
    let machines = match choice.design {
        Design::Split { .. } => format!("{p} of {a} for prompts and {t} of {b} for answers"),
        Design::Together(_) => format!("{p} of {a} for both"),
    };
    let cost = choice.cost.map_or(String::new(), |c| format!(", {c:.2} $/h"));
    let power = choice.power.map_or(String::new(), |w| format!(", {:.1} kW", w / 1e3));
    format!("{machines}{cost}{power}")
}

fn number(rate: f64) -> String {
    let text = format!("{rate:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn print_json(fleet: &Fleet, answer: &ProvisioningAnswer, took: Duration) -> Result<(), Exit> {
    let kinds: Vec<_> = fleet
        .question
        .kinds
        .iter()
        .map(|k| json!({ "name": k.name, "cost_per_hour": k.cost, "power_w": k.power }))
        .collect();
    output::print_json(&json!({
        "model": fleet.model, "workload": fleet.workload, "targets": fleet.targets, "kinds": kinds,
        "aim": fleet.question.aim, "budgets": fleet.question.budgets, "answer": answer, "took_s": took.as_secs_f64(),
    }))
}

fn print(fleet: &Fleet, answer: &ProvisioningAnswer, took: Duration) -> Result<(), Exit> {
    let question = &fleet.question;
    say!("{}, {}, {}: {}\n", fleet.model, fleet.workload, fleet.targets, aim(question));
    let head = ["", "DESIGN", "PROMPTS", "ANSWERS", "REQUESTS/S", "$/H", "KW"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for tried in &answer.designs {
        let mark = if tried.best.is_some() && tried.best == answer.best { "*" } else { "" };
        let mut row = vec![mark.to_owned(), name(question, tried.design)];
        let figure = |value: Option<f64>, scale: f64| value.map_or("?".to_owned(), |v| format!("{:.2}", v / scale));
        match (&tried.best, &tried.broken) {
            (Some(b), _) => {
                let answers = match b.design {
                    Design::Split { .. } => b.mix.answers.to_string(),
                    Design::Together(_) => String::new(),
                };
                row.extend([b.mix.prompts.to_string(), answers, number(b.rate)]);
                row.extend([figure(b.cost, 1.0), figure(b.power, 1e3)]);
            }
            (None, Some(broken)) => row.push(format!("none: alone, {}", explained(broken))),
            (None, None) => row.push("none within the limits".to_owned()),
        }
        rows.push(row);
    }
    output::table(&rows)?;
    if let Some(best) = &answer.best {
        say!("\nbest     {}", words(question, best));
    }
    say!(
        "search   {} simulations, {} of them cut short, {} mixes ruled out by closed forms, {:.1} s",
        answer.simulations,
        answer.cut,
        answer.ruled_out,
        took.as_secs_f64()
    );
    if !answer.finished {
        say!("stopped  this is the best so far");
    }
    Ok(())
}

fn aim(question: &Question) -> String {
    let limits: Vec<String> = question.budgets.iter().map(limit).collect();
    let within = if limits.is_empty() { String::new() } else { format!(" within {}", limits.join(" and ")) };
    match question.aim {
        Aim::Least { of, rate } => {
            let what = match of {
                Measure::Cost => "cheapest",
                Measure::Power => "least power",
                Measure::Machines => "fewest machines",
            };
            format!("{what} for {rate} requests/s{within}")
        }
        Aim::Most { step } => format!("most requests/s{within}, in steps of {}", number(step)),
    }
}
