//! Scenarios drawn from seeds: safety always, liveness once faults have stopped.

use super::seconds;
use tsnode_simulator::simulation::{Fault, PlannerKind, ScenarioReport, Script, requests::Planted, simulate};

/// Scenarios that once ended badly: seed and peers.
const KEPT: [(u64, usize); 19] = [
    (4, 9),
    (34, 18),
    (156, 23),
    (184, 5),
    (217, 38),
    (219, 40),
    (243, 18),
    (259, 34),
    (321, 50),
    (551, 50),
    (338, 21),
    (3534, 43),
    (1473, 6),
    (7362, 7),
    (241, 16),
    (223, 44),
    (730, 45),
    (1433, 12),
    (1621, 16),
];

/// The same of ten minutes of faults, with clients who ask so often.
const KEPT_LONG: [(u64, usize, f64); 3] = [(43, 48, 0.0), (43, 48, 1.0), (1120, 24, 0.0)];

fn runs(seed: u64, peers: usize, planning: PlannerKind) {
    let report = simulate(&Script { planning, ..Script::new(seed, peers) });
    if let Some(broken) = report.broken {
        panic!("`tsnode simulate control --seed {seed} --peers {peers}`: {broken}");
    }
}

/// First faults of every kind at random moments, then quiet: safety always, liveness after.
///
/// `TSNODE_SEEDS=3000` runs more scenarios.
#[test]
fn whatever_happens_connected_peers_agree_soon_after_it_stops() {
    let seeds = std::env::var("TSNODE_SEEDS").map_or(60, |n| n.parse().unwrap());
    KEPT.iter().for_each(|(seed, peers)| runs(*seed, *peers, PlannerKind::Sketch));
    (0..seeds).for_each(|seed| runs(seed, 5 + (seed % 21) as usize, PlannerKind::Sketch));
}

/// `TSNODE_SEEDS=1000` runs more scenarios.
#[test]
fn so_they_do_where_each_peer_lends_some_of_several_models() {
    let seeds = std::env::var("TSNODE_SEEDS").map_or(8, |n| n.parse().unwrap());
    for seed in 0..seeds {
        let (peers, models) = (5 + (seed % 21) as usize, 2 + (seed % 3) as u8);
        let clients = if seed % 4 == 0 { 1.0 } else { 0.0 };
        let report = simulate(&Script { models, clients, ..Script::new(seed, peers) });
        let line =
            format!("tsnode simulate control --seed {seed} --peers {peers} --models {models} --clients {clients}");
        assert!(report.broken.is_none(), "`{line}`: {}", report.broken.unwrap());
    }
    let planning = PlannerKind::Scheduler;
    for seed in 0..3 {
        let report = simulate(&Script { models: 2, planning, ..Script::new(seed, 5 + seed as usize) });
        assert_eq!(report.broken, None, "seed {seed}");
    }
}

#[test]
fn so_they_do_after_ten_minutes_of_faults() {
    for (seed, peers, clients) in KEPT_LONG {
        let report = simulate(&Script { faulty: seconds(600), clients, ..Script::new(seed, peers) });
        if let Some(broken) = report.broken {
            panic!(
                "`tsnode simulate control --seed {seed} --peers {peers} --minutes 10 --clients {clients}`: {broken}"
            );
        }
    }
}

#[test]
fn so_they_do_with_the_schedulers_plans() {
    (0..4).for_each(|seed| runs(seed, 5 + seed as usize, PlannerKind::Scheduler));
}

/// With clients who ask three times a second.
fn asked(seed: u64, peers: usize, planted: Option<Planted>) -> ScenarioReport {
    simulate(&Script { clients: 3.0, planted, ..Script::new(seed, peers) })
}

/// `TSNODE_SEEDS=1000` runs more scenarios.
#[test]
fn requests_end_once_and_whole_under_faults_and_are_taken_again_after_it() {
    let seeds = std::env::var("TSNODE_SEEDS").map_or(20, |n| n.parse().unwrap());
    let (mut complete, mut went_on) = (0, 0);
    for seed in 0..seeds {
        let peers = 5 + (seed % 16) as usize;
        let report = asked(seed, peers, None);
        if let Some(broken) = report.broken {
            panic!("`tsnode simulate control --seed {seed} --peers {peers} --clients 3`: {broken}");
        }
        assert!(report.figures.served_after.is_some());
        complete += report.figures.requests.complete;
        went_on += report.figures.requests.went_on;
    }
    // Answers that nobody broke off would show nothing.
    assert!(complete > 50 * seeds && went_on > 2 * seeds, "{complete} complete, {went_on} went on elsewhere");
}

/// What the checks say first when this is broken.
fn found(planted: Planted) -> &'static str {
    (0..10).find_map(|seed| asked(seed, 8, Some(planted)).broken).unwrap().sentence
}

#[test]
fn what_is_broken_on_purpose_is_found() {
    assert_eq!(found(Planted::Changed), "no_token_is_lost_repeated_or_changed");
    assert_eq!(found(Planted::HoldsOn), "no_peer_serves_a_request_under_two_plans");
    assert_eq!(found(Planted::NoEnd), "every_request_ends");
}

#[test]
fn clients_come_as_often_as_is_said_and_alike_from_one_seed() {
    let requests = |clients| simulate(&Script { clients, ..Script::new(9, 9) }).figures.requests;
    assert_eq!(requests(2.0), requests(2.0));
    assert!(requests(2.0).asked > requests(0.5).asked && requests(0.0).asked == 0);
}

#[test]
fn one_seed_gives_the_same_lines() {
    let lines = || simulate(&Script { faults: vec![Fault::Crash, Fault::Lie], ..Script::new(9, 9) }).lines;
    assert_eq!(lines(), lines());
}
