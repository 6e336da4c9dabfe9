//! Provisioning as in Splitwise §IV-D and §VI: its Fig. 12, and its summaries of Fig. 18 and 19.

use crate::{lengths, times};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tsnode_coordinator::policy::routing::Asked;
use tsnode_protocol::Seconds;
use tsnode_simulator::{
    measured_cost::Table,
    provisioning::{
        Aim, Choice, Design, MixBudget, ProvisioningAnswer, Question,
        demand::{Demand, Drawn},
        kinds::{Dgx, KindNo, MachineKind, Measure},
        provision, sustained,
        targets::{AloneTimes, ProvisioningTargets},
        trial::Trial,
        walk::Mix,
    },
    splitwise::{LINK, Sizes},
};

const A100: KindNo = KindNo(0);
const H100: KindNo = KindNo(1);
const CAPPED: KindNo = KindNo(2);

/// The paper's designs, Table V.
const DESIGNS: [(&str, Design); 6] = [
    ("Baseline-A100", Design::Together(A100)),
    ("Baseline-H100", Design::Together(H100)),
    ("Splitwise-AA", Design::Split { prompts: A100, answers: A100 }),
    ("Splitwise-HH", Design::Split { prompts: H100, answers: H100 }),
    ("Splitwise-HA", Design::Split { prompts: H100, answers: A100 }),
    ("Splitwise-HHcap", Design::Split { prompts: H100, answers: CAPPED }),
];
/// Machines of Baseline-H100, which the others are held against (§VI-B).
const BASELINE: u32 = 40;
/// Rates are multiples of this.
const STEP: f64 = 2.0;

struct Bench {
    kinds: Vec<MachineKind>,
    alone: Arc<Table>,
    sizes: Sizes,
}

impl Bench {
    fn question(&self, lengths: &[Asked], seed: u64, aim: Aim, budgets: Vec<MixBudget>) -> Question {
        Question {
            kinds: self.kinds.clone(),
            designs: DESIGNS.iter().map(|d| d.1).collect(),
            demand: Demand::new(lengths.to_vec(), Drawn::Apart, seed).expect("there are some"),
            targets: ProvisioningTargets::TableVi(AloneTimes::Table(self.alone.clone())),
            aim,
            budgets,
            machines: 512,
            short: Seconds(20.0),
            long: Seconds(60.0),
            transfer: self.sizes.kv / LINK,
        }
    }
}

pub fn print(shared: &Path) {
    let [a100, h100, capped] = ["a100-80gb", "h100-80gb", "h100-80gb-pcap"].map(|name| times(shared, name));
    let sizes = Sizes::of("bloom-176b").expect("it is known");
    let kind = |dgx, table| MachineKind::splitwise(dgx, table, sizes);
    let kinds = vec![kind(Dgx::A100, &a100), kind(Dgx::H100, &h100), kind(Dgx::H100Capped, &capped)];
    let bench = Bench { kinds, alone: a100, sizes };
    let (conversation, coding) = (lengths(shared, "conv"), lengths(shared, "code"));
    cheapest(&bench, &coding);
    for (name, list) in [("conversation", &conversation), ("coding", &coding)] {
        let within = |of, most| vec![MixBudget { of, most }];
        let most = Aim::Most { step: STEP };
        let power = Dgx::H100.power() * f64::from(BASELINE);
        let cost = Dgx::H100.cost() * f64::from(BASELINE);
        let iso_power = table(
            &bench,
            &format!("{name}, iso-power ({:.0} kW)", power / 1e3),
            list,
            most,
            within(Measure::Power, power),
        );
        table(&bench, &format!("{name}, iso-cost ({cost:.0} $/h)"), list, most, within(Measure::Cost, cost));
        let rate = iso_power.designs[1].best.map_or(STEP, |b| b.rate);
        for (of, words) in [(Measure::Power, "least power"), (Measure::Cost, "least cost")] {
            table(&bench, &format!("{name}, {words} at {rate} requests/s"), list, Aim::Least { of, rate }, Vec::new());
        }
        if name == "coding" {
            changed(&bench, &conversation, &iso_power);
        }
    }
}

/// Fig. 12, and what the search saves over trying every mix.
fn cheapest(bench: &Bench, coding: &[Asked]) {
    println!(
        "coding at 70 requests/s, Splitwise-HH, lists of 60 and 120 s (the paper: 27 prompt and 3 token machines)\n"
    );
    println!("| seed | found | simulations | cut short | time | every mix of 15–35 and 1–10 | simulations | time |");
    println!("|---|---|---|---|---|---|---|---|");
    for seed in 1..=3 {
        let aim = Aim::Least { of: Measure::Cost, rate: 70.0 };
        let question = Question {
            designs: vec![DESIGNS[3].1],
            short: Seconds(60.0),
            long: Seconds(120.0),
            ..bench.question(coding, seed, aim, Vec::new())
        };
        let (answer, took) = timed(&question);
        let found = answer.best.map_or("none".to_owned(), |b| mix(&b));
        let go_on = |_| false;
        let (mut trial, started) = (Trial::new(&question, DESIGNS[3].1, &go_on), Instant::now());
        let all = (1..=10).flat_map(|answers| (15..=35).map(move |prompts| Mix { prompts, answers }));
        let kept: Vec<Mix> = all.filter(|m| trial.keeps(*m, 70.0, question.long).unwrap_or(false)).collect();
        let least = kept.iter().map(|m| m.prompts + m.answers).min().unwrap_or(0);
        let which: Vec<String> = kept
            .iter()
            .filter(|m| m.prompts + m.answers == least)
            .map(|m| format!("{}P, {}T", m.prompts, m.answers))
            .collect();
        println!(
            "| {seed} | {found} | {} | {} | {took:.2} s | {} | {} | {:.2} s |",
            answer.simulations,
            answer.cut,
            which.join("; "),
            trial.simulations,
            started.elapsed().as_secs_f64()
        );
    }
}

fn timed(question: &Question) -> (ProvisioningAnswer, f64) {
    let started = Instant::now();
    let answer = provision(question, &|_| false).expect("the question has all it needs");
    (answer, started.elapsed().as_secs_f64())
}

fn mix(choice: &Choice) -> String {
    match choice.design {
        Design::Split { .. } => format!("{}P, {}T", choice.mix.prompts, choice.mix.answers),
        Design::Together(_) => format!("{}P/T", choice.mix.prompts),
    }
}

/// One question for every design, held against the second, Baseline-H100.
fn table(bench: &Bench, title: &str, list: &[Asked], aim: Aim, budgets: Vec<MixBudget>) -> ProvisioningAnswer {
    let (answer, took) = timed(&bench.question(list, 1, aim, budgets));
    println!("\n{title}: {} simulations, {} cut short, {took:.1} s\n", answer.simulations, answer.cut);
    println!("| design | machines | requests/s | to A100 | to H100 | cost to H100 | power to H100 | space to H100 |");
    println!("|---|---|---|---|---|---|---|---|");
    let best = |place: usize| answer.designs.get(place).and_then(|d| d.best);
    for ((name, _), tried) in DESIGNS.iter().zip(&answer.designs) {
        let Some(one) = tried.best else {
            println!("| {name} | none | | | | | | |");
            continue;
        };
        let ratio = |to: Option<Choice>, of: &dyn Fn(&Choice) -> f64| {
            to.map_or("–".to_owned(), |to| format!("{:.2}", of(&one) / of(&to)))
        };
        let takes = |of: Measure| ratio(best(1), &move |c: &Choice| c.takes(of));
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} |",
            mix(&one),
            one.rate,
            ratio(best(0), &|c| c.rate),
            ratio(best(1), &|c| c.rate),
            takes(Measure::Cost),
            takes(Measure::Power),
            takes(Measure::Machines)
        );
    }
    answer
}

/// Fig. 20a: conversation on clusters made for coding.
fn changed(bench: &Bench, conversation: &[Asked], made: &ProvisioningAnswer) {
    println!("\nconversation on the iso-power clusters made for coding (Fig. 20a)\n");
    println!("| design | machines | requests/s |\n|---|---|---|");
    let question = bench.question(conversation, 1, Aim::Most { step: STEP }, Vec::new());
    for ((name, design), tried) in DESIGNS.iter().zip(&made.designs) {
        let Some(best) = tried.best else { continue };
        let steps = sustained(&question, *design, best.mix, STEP, &|_| false).unwrap_or(0);
        println!("| {name} | {} | {} |", mix(&best), STEP * f64::from(steps));
    }
}
