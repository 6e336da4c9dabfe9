//! Services that share devices: placements are allowed, repeatable and near the best there is; pages are neither lost nor
//! made; what moves to another machine is served all the same.
#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use proptest::prelude::*;
use std::collections::BTreeMap;
use tsnode_coordinator::{
    policy::{
        batching::{RequestNo, ServiceNo},
        routing::{Asked, MachineNo},
    },
    replay::machines::{Alike, Arrival, OpeningMachine, Simulation},
    rng::Rng,
    scheduler::{Cluster, Problem, Slo, Space, Workload, cluster_file, figures::Column, public_models, slo::Reference},
};
use tsnode_protocol::{BytesPerSecond, Seconds, SecondsPerToken, Tokens};
use tsnode_simulator::{
    placement::{
        InvalidPlacement, Placement, Services, baselines, groups,
        hosting::Hosting,
        judge::{Judge, Judged, PastRequests},
        moving,
        replacement::{Rule, Worth},
        search::{self, FoundPlacement, PlacementEffort},
        serving::{self, ServingOptions},
    },
    policy::{
        least_loaded::{LeastLoaded, ServiceHolder},
        pool::HeldPages,
    },
    trace::{Arriving, beside, drawn},
};

const BRIEF: PlacementEffort = PlacementEffort { guide: 150, changes: 60, margin: 1.0 };

/// Hosts with so many devices of a kind.
fn cluster(hosts: &[(&str, u16)]) -> Cluster {
    let inside = "inside = { latency = 10e-6, bandwidth = 25e9 }";
    let host = |(h, (gpu, count)): (usize, &(&str, u16))| {
        format!("[[host]]\nname = \"h{h}\"\ngpu = \"{gpu}\"\ncount = {count}\nzone = \"z\"\n{inside}\n")
    };
    let hosts: String = hosts.iter().enumerate().map(host).collect();
    let link = "[[link]]\nfrom = \"z\"\nto = \"z\"\nlatency = 1e-4\nbandwidth = 10e9\n";
    cluster_file::read(&format!("name = \"test\"\n{hosts}{link}"), Column::Vendor, None).unwrap()
}

/// Services by model and rate (requests/s), at most two on a group.
fn services(cluster: &Cluster, all: &[(&str, f64)]) -> Services {
    let problem = |(place, (model, rate)): (usize, &(&str, f64))| {
        let model = public_models::by_name(model).unwrap();
        let workload = Workload::named(["conversation", "coding"][place % 2]).unwrap();
        let workload = workload.within(Tokens(f64::from(model.shape.context)));
        let reference = Reference::a100(&model, Column::Vendor).unwrap();
        Problem::new(cluster.clone(), model, workload, *rate, Slo::e2e(5.0), reference, Space::default()).unwrap()
    };
    Services::new(all.iter().enumerate().map(problem).collect(), 2).unwrap()
}

fn requests(services: &Services, seconds: f64, seed: u64) -> Vec<Arrival> {
    let list = |s: ServiceNo| {
        let problem = services.problem(s);
        let all = drawn(&problem.workload, problem.rate, 2000, Arriving::Bursty(2.0), seed * 100 + u64::from(s.0));
        all.into_iter().filter(|a| a.at.0 < seconds).collect()
    };
    beside(services.ids().map(list).collect())
}

fn find(services: &Services, seed: u64) -> (FoundPlacement, PastRequests) {
    let past = PastRequests::new(services, requests(services, 30.0, seed));
    (search::search(services, &past, None, BRIEF, seed, &|| false).unwrap(), past)
}

/// Every way to put at most two of the services on each group.
fn brute_force(services: &Services, groups: &[groups::GpuGroup], visit: &mut dyn FnMut(&Placement)) {
    let all: Vec<ServiceNo> = services.ids().collect();
    let sets: Vec<Vec<ServiceNo>> = (0u32..1 << all.len())
        .filter(|bits| bits.count_ones() as usize <= services.sharing)
        .map(|bits| all.iter().copied().filter(|s| bits >> s.0 & 1 == 1).collect())
        .collect();
    for number in 0..sets.len().pow(groups.len() as u32) {
        let mut placement = Placement::empty(groups);
        let mut rest = number;
        for sharing in &mut placement.groups {
            sharing.services.clone_from(&sets[rest % sets.len()]);
            rest /= sets.len();
        }
        visit(&placement);
    }
}

/// Hosts and their devices; models and requests a second.
type Case<'a> = (&'a [(&'a str, u16)], &'a [(&'a str, f64)]);

/// On clusters of at most four groups: never a deadline in fifty more missed, nor a tenth more latency, than the best of
/// every allocation of every partition; mostly neither.
#[test]
fn small_clusters_come_near_brute_force() {
    let cases: [Case; 6] = [
        (&[("A100-80G", 2), ("A100-80G", 1)], &[("LLaMA-7B", 2.0), ("LLaMA-13B", 0.5), ("LLaMA-7B", 0.3)]),
        (&[("A100-80G", 3)], &[("LLaMA-7B", 3.0), ("LLaMA-13B", 1.5), ("LLaMA-13B", 0.5)]),
        (&[("A40", 2), ("A6000", 1)], &[("LLaMA-7B", 1.0), ("LLaMA-13B", 0.3), ("LLaMA-7B", 0.2)]),
        (&[("A100-80G", 2), ("A40", 1)], &[("LLaMA-7B", 2.0), ("LLaMA-7B", 2.0), ("LLaMA-13B", 1.0)]),
        (&[("A100-80G", 4)], &[("LLaMA-30B", 0.5), ("LLaMA-7B", 3.0)]),
        (&[("A5000", 4)], &[("LLaMA-7B", 0.5), ("LLaMA-7B", 0.5), ("LLaMA-13B", 0.1)]),
    ];
    let mut best_found = 0;
    for (seed, (hosts, asked)) in cases.into_iter().enumerate() {
        let services = services(&cluster(hosts), asked);
        let (found, past) = find(&services, seed as u64);
        let (mut judge, mut hosting) = (Judge::new(&services, &past), Hosting::new(&services));
        let (mut best, mut tried): (Option<Judged>, usize) = (None, 0);
        for groups in groups::partitions(&mut hosting) {
            brute_force(&services, &groups, &mut |placement| {
                if placement.check(&mut hosting).is_ok() {
                    tried += 1;
                    let judged = judge.judge(placement);
                    if best.as_ref().is_none_or(|b| judged.is_better_than(b)) {
                        best = Some(judged);
                    }
                }
            });
        }
        let best = best.unwrap();
        println!(
            "case {seed}: {:.4} and {:.3} of {tried} placements' {:.4} and {:.3}",
            found.judged.attainment(),
            found.judged.normalised(),
            best.attainment(),
            best.normalised()
        );
        best_found += usize::from(!best.is_better_than(&found.judged));
        assert!(found.judged.attainment() >= best.attainment() - 0.02, "case {seed}");
        let as_many = found.judged.attainment() <= best.attainment();
        assert!(!as_many || found.judged.normalised() <= 1.1 * best.normalised(), "case {seed}");
    }
    println!("{best_found} of {} no worse than brute force", cases.len());
    assert!(2 * best_found >= cases.len(), "{best_found}");
}

/// Counted by hand: weights of all over the devices of a group.
fn is_allowed(services: &Services, placement: &Placement) {
    let cluster = services.cluster();
    let mut used: BTreeMap<_, u16> = BTreeMap::new();
    for sharing in &placement.groups {
        sharing.group.stages.iter().for_each(|(i, tp)| *used.entry(*i).or_default() += tp);
        assert!(sharing.services.len() <= services.sharing);
        assert!(sharing.services.windows(2).all(|w| w[0] < w[1]), "in order, each once");
        let memory: f64 = sharing.group.stages.iter().map(|(i, n)| cluster.figures(*i).memory.0 * f64::from(*n)).sum();
        let weights: f64 = sharing.services.iter().map(|s| services.problem(*s).model.bytes().0).sum();
        assert!(weights < 0.9 * memory, "{weights} on {memory}");
    }
    assert!(used.iter().all(|(i, n)| *n <= cluster.instance(*i).count), "a device in two groups");
    assert!(services.ids().all(|s| placement.holders(s).next().is_some()), "a service is nowhere");
    assert_eq!(placement.check(&mut Hosting::new(services)), Ok(()));
}

const KINDS: [&str; 4] = ["A100-80G", "A40", "A6000", "A5000"];
const MODELS: [&str; 3] = ["LLaMA-7B", "LLaMA-13B", "LLaMA-30B"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn placements_are_allowed_and_repeatable(
        hosts in prop::collection::vec((0..KINDS.len(), 1u16..5), 1..4),
        asked in prop::collection::vec((0..MODELS.len(), 0.05..1.0f64), 1..6),
        seed in 0u64..1000,
    ) {
        let hosts: Vec<(&str, u16)> = hosts.into_iter().map(|(k, n)| (KINDS[k], n)).collect();
        let cluster = cluster(&hosts);
        let asked: Vec<(&str, f64)> = asked.into_iter().map(|(m, r)| (MODELS[m], r)).collect();
        // A model that fits nowhere is no problem at all.
        let memory: f64 = hosts.iter().map(|h| if h.0 == "A5000" { 24.0 } else { 48.0 } * f64::from(h.1)).sum();
        prop_assume!(memory > 75.0 * asked.len() as f64);
        let services = services(&cluster, &asked);
        let past = PastRequests::new(&services, requests(&services, 20.0, seed));
        let effort = PlacementEffort { guide: 60, changes: 20, margin: 1.2 };
        let again = || search::search(&services, &past, None, effort, seed, &|| false);
        let found = again();
        prop_assert_eq!(&found, &again());
        if let Ok(found) = found {
            is_allowed(&services, &found.placement);
        }
        for baseline in [baselines::dedicated(&services), baselines::in_turn(&services)].concat() {
            is_allowed(&services, &baseline);
        }
    }

    /// Never over capacity, every page comes back, and all as a plain recount has it.
    #[test]
    fn pages_are_neither_lost_nor_made(
        tokens in prop::collection::vec(1u64..40, 1..4),
        page in 40u64..200,
        steps in prop::collection::vec((0u32..8, 0u16..4, 0u64..60, 0u8..3), 1..200),
    ) {
        let bytes = 5000;
        let mut pool = HeldPages::of_page(bytes, page, tokens.clone()).unwrap();
        let mut plain: BTreeMap<u32, (u16, u64)> = BTreeMap::new();
        let needed = |service: u16, n: u64| n.div_ceil(page / tokens[usize::from(service)]);
        let all = bytes / page;
        for (request, service, n, what) in steps {
            let used: u64 = plain.values().map(|(s, n)| needed(*s, *n)).sum();
            let number = RequestNo(request);
            match what {
                0 => {
                    let fits = usize::from(service) < tokens.len() && used + needed(service, n) <= all;
                    let expected = fits && !plain.contains_key(&request);
                    prop_assert_eq!(pool.reserve(number, ServiceNo(service), n), expected);
                    if expected {
                        plain.insert(request, (service, n));
                    }
                }
                1 => {
                    let grown = plain.get(&request).map(|(s, before)| needed(*s, before + n) - needed(*s, *before));
                    let expected = grown.is_some_and(|g| used + g <= all);
                    prop_assert_eq!(pool.extend(number, n), expected);
                    if let Some(held) = plain.get_mut(&request).filter(|_| expected) {
                        held.1 += n;
                    }
                }
                _ => {
                    let held = plain.remove(&request).map_or(0, |h| h.1);
                    prop_assert_eq!(pool.release(number), held);
                }
            }
            let used: u64 = plain.values().map(|(s, n)| needed(*s, *n)).sum();
            let bytes: u64 = plain.values().map(|(s, n)| n * tokens[usize::from(*s)]).sum();
            prop_assert!(used <= all);
            prop_assert_eq!(pool.free(), all - used);
            prop_assert_eq!(pool.lost(), used * page - bytes);
            prop_assert!(pool.lost() <= pool.most_lost());
        }
        for request in plain.keys() {
            pool.release(RequestNo(*request));
        }
        prop_assert_eq!((pool.free(), pool.lost()), (all, 0));
    }
}

#[test]
fn popular_services_get_more_devices() {
    let cluster = cluster(&[("A100-80G", 4), ("A100-80G", 4)]);
    for seed in 0..3 {
        let rates = [20.0, 0.2, 6.0, 0.1];
        let asked = rates.map(|r| ("LLaMA-7B", r));
        let services = services(&cluster, &asked);
        let (found, _) = find(&services, seed);
        let devices: Vec<u32> = services.ids().map(|s| found.placement.devices(s)).collect();
        assert!(devices.iter().all(|d| *d <= devices[0]), "seed {seed}: {devices:?}");
        // The devices that a request finds, against those that a service has.
        let mean = f64::from(devices.iter().sum::<u32>()) / 4.0;
        let found = devices.iter().zip(rates).map(|(d, r)| f64::from(*d) * r).sum::<f64>() / rates.iter().sum::<f64>();
        assert!(found > 1.1 * mean, "seed {seed}: {devices:?}");
    }
}

#[test]
fn what_is_wrong_with_a_placement_is_said() {
    let services = services(&cluster(&[("A40", 2)]), &[("LLaMA-13B", 1.0), ("LLaMA-13B", 1.0)]);
    let mut hosting = Hosting::new(&services);
    let parts = groups::partitions(&mut hosting);
    let single = parts.iter().find(|p| p.len() == 2).unwrap();
    let with = |sets: [&[u16]; 2]| {
        let mut placement = Placement::empty(single);
        for (sharing, set) in placement.groups.iter_mut().zip(sets) {
            sharing.services = set.iter().map(|s| ServiceNo(*s)).collect();
        }
        placement
    };
    assert_eq!(with([&[0], &[1]]).check(&mut hosting), Ok(()));
    assert_eq!(with([&[0], &[]]).check(&mut hosting), Err(InvalidPlacement::Nowhere(1)));
    assert_eq!(with([&[0, 1], &[]]).check(&mut hosting), Err(InvalidPlacement::Memory(0)), "52 GB of weights on 48 GB");
    let twice = Placement { groups: [with([&[0], &[1]]).groups, with([&[0], &[1]]).groups].concat() };
    assert_eq!(twice.check(&mut hosting), Err(InvalidPlacement::Devices { host: 0, used: 4, has: 2 }));
}

#[test]
fn models_that_do_not_fit_together_are_refused() {
    let services = services(&cluster(&[("A5000", 1)]), &[("LLaMA-7B", 1.0), ("LLaMA-7B", 1.0)]);
    let past = PastRequests::new(&services, requests(&services, 10.0, 1));
    let refused = search::search(&services, &past, None, BRIEF, 1, &|| false).unwrap_err();
    assert_eq!(refused.to_string(), "no GPU groups of this cluster hold all 2 services at once, at most 2 on a group");
}

#[test]
fn groups_that_are_alike_change_roles_to_keep_their_weights() {
    let services = services(&cluster(&[("A100-80G", 2), ("A100-80G", 2)]), &[("LLaMA-7B", 1.0); 4]);
    let singles = groups::partitions(&mut Hosting::new(&services)).into_iter().find(|p| p.len() == 4).unwrap();
    let mut rng = Rng::new(3);
    for _ in 0..50 {
        let mut any = || {
            let mut placement = Placement::empty(&singles);
            for place in 0..singles.len() {
                (0..2).for_each(|_| placement.add(place, ServiceNo(rng.below(4) as u16)));
            }
            placement
        };
        let (before, after) = (any(), any());
        let loaded = |after: &Placement| -> f64 {
            let had = moving::counterparts(&before, after);
            let of = |(s, had): (&tsnode_simulator::placement::SharingGroup, &Option<usize>)| {
                moving::to_load(&services, &before.groups[had.unwrap()].services, &s.services).0
            };
            after.groups.iter().zip(&had).map(of).sum()
        };
        let aligned = moving::aligned(&services, &before, &after);
        assert!(loaded(&aligned) <= loaded(&after));
        assert_eq!(moving::aligned(&services, &before, &before), before);
        let sets = |p: &Placement| {
            let mut sets: Vec<_> = p.groups.iter().map(|s| s.services.clone()).collect();
            sets.sort();
            sets
        };
        assert_eq!(sets(&aligned), sets(&after), "the same services together");
    }
}

fn simulation(hosting: &mut Hosting<'_>, placement: &Placement) -> Simulation {
    let (machines, holders) = hosting.machines(placement);
    let links = Alike { per_token: SecondsPerToken(0.0) };
    Simulation::new(machines, Box::new(LeastLoaded::new(holders)), Box::new(links))
}

#[test]
fn a_simulation_in_steps_is_the_same() {
    let services = services(&cluster(&[("A100-80G", 2)]), &[("LLaMA-7B", 2.0), ("LLaMA-13B", 1.0)]);
    let (found, past) = find(&services, 1);
    let mut hosting = Hosting::new(&services);
    let whole = simulation(&mut hosting, &found.placement).run(past.arrivals(), &|_| false);
    let mut steps = simulation(&mut hosting, &found.placement).expecting(past.arrivals());
    (1..50).for_each(|n| steps.until(Seconds(f64::from(n) * 0.7)));
    assert_eq!(steps.finish().traces, whole.traces);
}

/// A machine closes while it serves: its requests go on elsewhere with the tokens they have, when weights are loaded.
#[test]
fn requests_of_a_machine_that_closes_end_elsewhere() {
    let services = services(&cluster(&[("A100-80G", 1), ("A100-80G", 1)]), &[("LLaMA-7B", 1.0)]);
    let mut hosting = Hosting::new(&services);
    let single = groups::partitions(&mut hosting).into_iter().find(|p| p.len() == 2).unwrap();
    let mut placement = Placement::empty(&single[..1]);
    placement.add(0, ServiceNo(0));
    let asked = Asked { service: ServiceNo(0), prompt: 100, answer: 500 };
    let arrivals: Vec<Arrival> = (0..4).map(|n| Arrival { at: Seconds(f64::from(n)), asked }).collect();
    let run = |change: Option<f64>| {
        let mut hosting = Hosting::new(&services);
        let mut simulation = simulation(&mut hosting, &placement).expecting(&arrivals);
        if let Some(loading) = change {
            simulation.until(Seconds(2.5));
            let machine = hosting.machine(&placement.groups[0]).unwrap();
            let holders = vec![vec![ServiceHolder { machine: MachineNo(1), speed: 1.0 }]];
            let opening = vec![OpeningMachine { machine, loading: Seconds(loading) }];
            simulation.change(&[MachineNo(0)], opening, Box::new(LeastLoaded::new(holders)));
        }
        simulation.finish().traces
    };
    let (stayed, moved, waited) = (run(None), run(Some(0.0)), run(Some(10.0)));
    for ((stayed, moved), waited) in stayed.iter().zip(&moved).zip(&waited) {
        assert!(moved.end >= stayed.end, "nothing is won by moving");
        assert!(moved.end - stayed.end < Seconds(1.0), "a prompt is computed again, tokens are not");
        let late = waited.end - moved.end;
        assert!(late > Seconds(5.0) && late < Seconds(11.0), "{late:?}");
    }
    assert_eq!(moved[0].first, stayed[0].first, "it came before the change");
    assert_eq!(moved[3].route.unwrap().prompt, MachineNo(1));
}

#[test]
fn placements_that_follow_the_traffic_keep_more_deadlines() {
    let cluster = cluster(&[("A100-80G", 4)]);
    let at = |rates: [f64; 4]| services(&cluster, &rates.map(|r| ("LLaMA-7B", r)));
    let (before, after) = (at([7.0, 0.3, 0.3, 0.3]), at([0.3, 0.3, 0.3, 7.0]));
    let past = PastRequests::new(&before, requests(&before, 40.0, 1));
    let mut list = requests(&before, 40.0, 2);
    list.extend(requests(&after, 200.0, 3).into_iter().map(|a| Arrival { at: a.at + Seconds(40.0), ..a }));
    let all = PastRequests::new(&before, list);
    let serve = |rule| {
        let how = ServingOptions { rule, effort: BRIEF, seed: 1, loading: BytesPerSecond(10e9) };
        serving::serve(&before, &past, &all, how).unwrap()
    };
    let rule = Rule { start: Seconds(40.0), least: Seconds(20.0), worth: Worth::Better, ..Rule::default() };
    let (never, follows) = (serve(None), serve(Some(rule)));
    assert_eq!((never.intervals, never.replacements), (0, 0));
    assert!(follows.replacements >= 1 && follows.replacements < follows.intervals, "{follows:?}");
    let ended = |s: &serving::ServedTrace| s.judged.services.iter().map(|t| t.ended).sum::<usize>();
    assert_eq!((ended(&never), ended(&follows)), (all.len(), all.len()), "every request ends");
    assert!(follows.judged.is_better_than(&never.judged), "{:?} and {:?}", follows.judged, never.judged);
}
