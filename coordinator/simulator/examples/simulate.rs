//! Many scenarios of the control plane, from seed to seed:
//! `simulate [first seed] [count] [fewest peers] [most peers] [scheduler] [clients=<a second>] [minutes=<of faults>]`.
//!
//! `tsnode simulate control` does the same and more; this builds without the node.

use std::time::{Duration, Instant};
use tsnode_simulator::simulation::{PlannerKind, Script, requests::ScenarioTally, simulate};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |k: usize, otherwise: u64| arguments.get(k).and_then(|a| a.parse().ok()).unwrap_or(otherwise);
    let (first, count, fewest, most) = (number(0, 0), number(1, 100), number(2, 5), number(3, 50));
    let planning = match arguments.iter().any(|a| a == "scheduler") {
        true => PlannerKind::Scheduler,
        false => PlannerKind::Sketch,
    };
    let said = |name: &str| arguments.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('=')?.parse::<f64>().ok());
    let (clients, minutes) = (said("clients").unwrap_or(0.0), said("minutes").unwrap_or(0.5));
    let faulty = Duration::from_secs_f64(60.0 * minutes);
    let (started, mut failed) = (Instant::now(), 0);
    let (mut silent, mut at_once, mut agreed, mut served) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut requests = ScenarioTally::default();
    for seed in first..first + count {
        let peers = fewest + seed % (most - fewest + 1);
        let begun = Instant::now();
        let mut report = simulate(&Script { planning, clients, faulty, ..Script::new(seed, peers as usize) });
        if count == 1 {
            for (at, line) in &report.lines {
                println!("{:8.2}  {line}", at.as_secs_f64());
            }
            let figures = &report.figures;
            println!("{:?}\n{:?}", figures.said, figures.refused);
        }
        if let Some(broken) = &report.broken {
            failed += 1;
            println!("seed {seed} peers {peers}: {broken}");
        }
        if begun.elapsed().as_secs() > 20 {
            println!("seed {seed} peers {peers} took {:.1} s", begun.elapsed().as_secs_f64());
        }
        silent.append(&mut report.figures.noticed_by_silence);
        at_once.append(&mut report.figures.noticed_at_once);
        agreed.extend(report.figures.agreed_after);
        served.extend(report.figures.served_after);
        requests += report.figures.requests;
    }
    for (name, of) in [
        ("noticed by silence", &mut silent),
        ("noticed at once", &mut at_once),
        ("agreed after", &mut agreed),
        ("served after", &mut served),
    ] {
        if of.is_empty() && name == "served after" {
            continue;
        }
        print_quantiles(name, of);
    }
    if clients > 0.0 {
        println!("{requests:?}");
    }
    println!("{count} seeds, {failed} broken, {:.1} s", started.elapsed().as_secs_f64());
    if failed > 0 {
        std::process::exit(1);
    }
}

fn print_quantiles(name: &str, of: &mut [f64]) {
    of.sort_by(f64::total_cmp);
    let at = |q: f64| of.get((q * of.len().saturating_sub(1) as f64) as usize).copied().unwrap_or(f64::NAN);
    println!("{name}: median {:.2} s, 99 % {:.2} s, most {:.2} s, of {}", at(0.5), at(0.99), at(1.0), of.len());
}
