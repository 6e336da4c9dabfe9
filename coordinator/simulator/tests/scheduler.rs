//! Plans on random clusters: feasible, complete, recomputable, the same on any number of threads; and as good as the
//! best there is where that can be known.
#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use proptest::prelude::*;
use std::collections::BTreeMap;
use tsnode_coordinator::{
    replay::{Replay, replay},
    scheduler::{
        Cluster, Evaluator, InstanceId, Problem, Slo, Space, Workload, cluster_file,
        figures::Column,
        public_models, regions,
        rescheduling::{self, StandingGroup},
        search::{self, Effort, Found},
        slo::Reference,
    },
};
use tsnode_protocol::Phase;
use tsnode_simulator::{baselines::exhaustive, bound, services};

const NEVER: &(dyn Fn() -> bool + Sync) = &|| false;
/// No replays: closed forms alone decide.
const HOW: Replay = Replay { seed: 0, requests: 0 };
const QUICK: Effort = Effort { steps: 30, neighbours: 10, memory: 5, walks: 2, threads: 1 };

fn host(name: &str, gpu: &str, count: usize, zone: usize) -> String {
    let inside = "inside = { latency = 10e-6, bandwidth = 25.6e9 }";
    format!("[[host]]\nname = {name:?}\ngpu = {gpu:?}\ncount = {count}\nzone = \"z{zone}\"\n{inside}\n")
}

fn link(from: usize, to: usize, latency: f64, bandwidth: f64) -> String {
    format!("[[link]]\nfrom = \"z{from}\"\nto = \"z{to}\"\nlatency = {latency:e}\nbandwidth = {bandwidth:e}\n")
}

fn cluster(text: &str) -> Cluster {
    cluster_file::read(&format!("name = \"test\"\n{text}"), Column::Paper, None).unwrap()
}

fn problem(cluster: Cluster, model: &str, workload: &str, rate: f64) -> Option<Problem> {
    let model = public_models::by_name(model).unwrap();
    let reference = Reference::a100(&model, Column::Paper).unwrap();
    let workload = Workload::named(workload).unwrap();
    Problem::new(cluster, model, workload, rate, Slo::e2e(6.0), reference, Space::default()).ok()
}

/// Up to five hosts in two zones, links of any quality.
fn any_problem() -> impl Strategy<Value = Option<Problem>> {
    let kinds = prop::sample::select(vec!["A40", "A6000", "A5000", "3090Ti"]);
    let hosts = prop::collection::vec((kinds, 1usize..5, 0usize..2), 1..6);
    let model = prop::sample::select(vec!["LLaMA-13B", "LLaMA-30B", "Llama-3-8B"]);
    let workload = prop::sample::select(vec!["coding", "conversation"]);
    (hosts, 7.0f64..10.5, 0.3f64..8.0, model, workload).prop_map(|(hosts, beta, rate, model, workload)| {
        let mut text = host("first", "A40", 1, 0) + &host("second", "A40", 1, 1);
        for (i, (gpu, count, zone)) in hosts.iter().enumerate() {
            text += &host(&format!("h{i}"), gpu, *count, *zone);
        }
        for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let slower = if from == to { 1.0 } else { 0.3 };
            text += &link(from, to, 1e-3, 10f64.powf(beta) * slower);
        }
        problem(cluster(&text), model, workload, rate)
    })
}

/// Every group holds the model; every device is used at most once; shares and values follow from each other.
fn check(problem: &Problem, found: &Found) {
    let mut used: BTreeMap<_, u16> = BTreeMap::new();
    let mut evaluator = Evaluator::new(problem);
    let groups = search::shelved(&mut evaluator, &found.grouping).unwrap();
    for (part, group) in found.grouping.parts.iter().zip(&groups) {
        let config = &evaluator.shelved(*group).rated.config;
        let layers: u32 = config.stages.iter().map(|s| s.layers).sum();
        assert_eq!(layers, problem.model.shape.layers, "layers covered once");
        assert!(config.stages.iter().all(|s| s.layers > 0));
        assert!(config.kv_tokens >= problem.workload.mean.longest * 0.999, "room for the longest request");
        let mut members: BTreeMap<_, u16> = BTreeMap::new();
        for stage in &config.stages {
            *members.entry(stage.instance).or_default() += stage.tp;
        }
        assert_eq!(members.into_iter().collect::<Vec<_>>(), part.members, "stages use the group's devices");
        for (instance, n) in &part.members {
            *used.entry(*instance).or_default() += n;
        }
    }
    assert!(used.iter().all(|(i, n)| *n <= problem.cluster.instance(*i).count), "a device used twice");
    let e = &found.evaluation;
    let again = evaluator.evaluate(&groups);
    assert_eq!(&again, e, "recomputes to its value");
    let attained: f64 = e.shares.iter().map(|s| s.share * s.kept).sum();
    assert!((attained - e.attainment).abs() < 1e-12);
    assert!(
        e.carried() <= 1.0 + 1e-9 && e.shares.iter().all(|s| s.share >= 0.0 && (0.0..=1.0 + 1e-9).contains(&s.kept))
    );
    for s in &e.shares {
        let phases = (found.grouping.parts[s.prefill].phase, found.grouping.parts[s.decode].phase);
        assert!(phases == (Phase::Prefill, Phase::Decode) || (s.prefill == s.decode && phases.0 == Phase::Mixed));
    }
    // No group carries more than its load says.
    let rate = |k: usize| evaluator.shelved(groups[k]).rated.rate();
    for k in 0..groups.len() {
        let sum = |f: &dyn Fn(&&tsnode_coordinator::scheduler::evaluate::RouteShare) -> bool| {
            e.shares.iter().filter(f).map(|s| s.share).sum::<f64>() * problem.rate
        };
        assert!(sum(&|s| s.prefill == k) <= rate(k) * e.loads.0.max(e.loads.1) + 1e-6);
        assert!(sum(&|s| s.decode == k) <= rate(k) * e.loads.0.max(e.loads.1) + 1e-6);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_is_sound_and_the_same_on_many_threads(problem in any_problem(), seed in 0u64..1000) {
        let Some(problem) = problem else { return Ok(()) };
        let one = search::search(&problem, seed, QUICK, NEVER);
        let many = search::search(&problem, seed, Effort { threads: 4, ..QUICK }, NEVER);
        prop_assert!(!one.grouping.parts.is_empty(), "a cluster that holds the model has a plan");
        check(&problem, &one);
        prop_assert_eq!(&one.grouping, &many.grouping);
        prop_assert_eq!(&one.evaluation, &many.evaluation);
    }

    #[test]
    fn flips_keep_groups_and_never_lose(problem in any_problem(), seed in 0u64..1000) {
        let Some(problem) = problem else { return Ok(()) };
        let found = search::search(&problem, seed, QUICK, NEVER);
        let mut evaluator = Evaluator::new(&problem);
        let groups = search::shelved(&mut evaluator, &found.grouping).unwrap();
        let standing: Vec<StandingGroup> = groups.iter().map(|g| {
            let s = evaluator.shelved(*g);
            StandingGroup { members: s.members.clone(), config: s.rated.config.clone(), phase: s.rated.phase }
        }).collect();
        // Twice the requests: other phases may do better, none may do worse.
        let shifted = problem.at_rate(problem.rate * 2.0);
        let flipped = rescheduling::reschedule(&shifted, &standing);
        prop_assert_eq!(flipped.phases.len(), standing.len());
        prop_assert!(flipped.evaluation.value >= flipped.before.value);
    }
}

#[test]
fn search_finds_the_best_of_all_plans_of_small_clusters() {
    let mut equal = 0;
    let cases = [(2, 2, 2, 0), (4, 0, 0, 0), (2, 0, 4, 0), (2, 2, 0, 2), (0, 4, 0, 2), (1, 1, 2, 2), (0, 0, 4, 4)];
    for (n, (a40, a6000, a5000, ti)) in cases.into_iter().enumerate() {
        let mut text = String::new();
        for (gpu, count) in [("A40", a40), ("A6000", a6000), ("A5000", a5000), ("3090Ti", ti)] {
            if count > 0 {
                text += &host(gpu, gpu, count, 0);
            }
        }
        text += &link(0, 0, 200e-6, if n % 2 == 0 { 4.5e9 } else { 0.5625e9 });
        let workload = if n % 3 == 0 { "coding" } else { "conversation" };
        let problem = problem(cluster(&text), "LLaMA-30B", workload, 0.8).unwrap();
        let best = exhaustive::search(&problem).evaluation;
        let bound = bound::attainment_beyond(&problem, 0.0).unwrap();
        assert!(best.attainment <= bound + 1e-9, "{text}: {} above the bound of {bound}", best.attainment);
        let best = best.value;
        let found = search::search(&problem, 1, Effort { walks: 2, ..Effort::default() }, NEVER).evaluation.value;
        assert!(found >= 0.999 * best, "{text}: {found} of {best}");
        equal += usize::from(found >= best - 1e-9);
    }
    assert!(equal + 1 >= cases.len(), "{equal} of {} equal", cases.len());
}

/// However often walks meet and go on from the same plan, what it is compared with are others.
#[test]
fn runners_up_are_other_plans() {
    let text: String = ["a", "b", "c"].iter().map(|name| host(name, "A40", 2, 0)).collect();
    let Some(problem) = problem(cluster(&text), "LLaMA-7B", "conversation", 2.0) else { panic!("three hosts hold 7B") };
    let found = search::search(&problem, 0, Effort::default(), NEVER);
    let mut all: Vec<_> = found.runners_up.iter().map(|r| &r.0).chain([&found.grouping]).collect();
    assert!(all.len() >= 4, "{} runners-up", found.runners_up.len());
    all.sort();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn ten_thousand_devices_are_planned_in_parts() {
    let mut text = link(0, 0, 1e-4, 10e9);
    for i in 0..1250 {
        text += &host(&format!("h{i}"), ["A40", "A6000", "A5000", "3090Ti"][i % 4], 8, 0);
    }
    let problem = problem(cluster(&text), "LLaMA-13B", "conversation", 4000.0).unwrap();
    let parts = regions::split(&problem, regions::MOST);
    let devices: usize = parts.iter().flatten().map(|m| usize::from(m.1)).sum();
    assert_eq!(devices, 10_000);
    // Told to stop at once, it still plans something everywhere.
    let found = regions::search(&problem, 0, QUICK, &|| true);
    assert_eq!(found.len(), parts.len());
    assert!(found.iter().all(|r| !r.found.grouping.parts.is_empty()));
    let share: f64 = found.iter().map(|r| r.share).sum();
    assert!((share - 1.0).abs() < 1e-9);
}

#[test]
fn islands_share_nothing() {
    // Two zones with no link between them: no group spans both, no KV crosses.
    let text = host("a", "A40", 4, 0) + &host("b", "A6000", 4, 1) + &link(0, 0, 1e-4, 4.5e9) + &link(1, 1, 1e-4, 4.5e9);
    let problem = problem(cluster(&text), "LLaMA-13B", "conversation", 4.0).unwrap();
    let found = search::search(&problem, 0, Effort::default(), NEVER);
    check(&problem, &found);
    assert!(found.grouping.parts.iter().all(|p| p.members.len() == 1), "a group over both islands");
    let home = |k: usize| found.grouping.parts[k].members[0].0;
    assert!(found.evaluation.shares.iter().all(|s| home(s.prefill) == home(s.decode)), "KV over no link");
    assert!(found.evaluation.attainment > 0.5);
}

#[test]
fn closed_forms_say_what_the_replay_shows() {
    let cluster = cluster_file::read(cluster_file::SHIPPED[0].1, Column::Paper, Some("high")).unwrap();
    for (workload, rate) in [("coding", 3.0), ("conversation", 4.0)] {
        let problem = problem(cluster.clone(), "LLaMA-30B", workload, rate).unwrap();
        let found = search::search(&problem, 0, Effort::default(), NEVER);
        let mut evaluator = Evaluator::new(&problem);
        let groups = search::shelved(&mut evaluator, &found.grouping).unwrap();
        let report = replay(&mut evaluator, &groups, &found.evaluation, Replay { seed: 3, requests: 3000 });
        let apart = (report.attainment - found.evaluation.attainment).abs();
        assert!(apart < 0.06, "{workload}: {} and {}", report.attainment, found.evaluation.attainment);
    }
}

/// Two services on three small hosts: every way to deal the devices, against the search.
#[test]
fn services_share_a_cluster_as_well_as_any_division_does() {
    let text =
        host("a", "A40", 2, 0) + &host("b", "A5000", 4, 0) + &host("c", "3090Ti", 3, 0) + &link(0, 0, 2e-4, 4.5e9);
    let service = |model, workload, rate| problem(cluster(&text), model, workload, rate).unwrap();
    for (a, b) in [(1.0, 3.0), (6.0, 1.0)] {
        let services = [service("LLaMA-13B", "coding", a), service("Llama-3-8B", "conversation", b)];
        let shared = services::search(&services, 0, Effort { steps: 400, ..QUICK }, HOW, NEVER, NEVER).unwrap();
        let mut best = 0.0f64;
        for (x, y, z) in (0..3u16).flat_map(|x| (0..5u16).flat_map(move |y| (0..4u16).map(move |z| (x, y, z)))) {
            let deal = |n: [u16; 3]| -> Vec<(InstanceId, u16)> {
                let all = n.into_iter().enumerate().map(|(i, n)| (InstanceId(i as u32), n));
                all.filter(|m| m.1 > 0).collect()
            };
            let parts = [deal([x, y, z]), deal([2 - x, 4 - y, 3 - z])];
            let value = |(s, m): (&Problem, &Vec<(InstanceId, u16)>)| {
                s.part(m).map_or(0.0, |p| p.rate * search::search(&p, 0, QUICK, NEVER).evaluation.value)
            };
            best = best.max(services.iter().zip(&parts).map(value).sum::<f64>() / (a + b));
        }
        println!("{} divisions: {:.4}, the best of all {best:.4}", shared.divisions, shared.value);
        assert!(shared.value >= 0.995 * best, "{} of {best}", shared.value);
        let mut used: BTreeMap<InstanceId, u16> = BTreeMap::new();
        for (served, service) in shared.services.iter().zip(&services) {
            served.members.iter().for_each(|&(i, n)| *used.entry(i).or_default() += n);
            served.regions.iter().for_each(|r| check(&r.problem, &r.found));
            assert_eq!(served.problem.model.name, service.model.name);
        }
        assert!(used.iter().all(|(i, n)| *n <= services[0].cluster.instance(*i).count), "{used:?}");
    }
}

#[test]
fn services_that_do_not_fit_together_are_told_so() {
    let text = host("a", "A40", 2, 0) + &link(0, 0, 2e-4, 4.5e9);
    let service = || problem(cluster(&text), "LLaMA-30B", "coding", 1.0).unwrap();
    let error = services::search(&[service(), service()], 0, QUICK, HOW, NEVER, NEVER).unwrap_err();
    assert!(error.to_string().contains("LLaMA-30B and LLaMA-30B needs"), "{error}");
}
