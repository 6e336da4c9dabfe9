//! How long planning takes.

use crate::{LINKS, NEVER, WORKLOADS, median, plan, problem, shipped, thousand, usual};
use std::time::Instant;
use tsnode_coordinator::scheduler::{
    Cluster, Evaluator, Slo,
    cluster::{ClusterLink, Instance},
    figures::Column,
    regions,
    rescheduling::{self, StandingGroup},
    search,
};
use tsnode_protocol::{BytesPerSecond, Seconds};

const RUNS: usize = 9;

fn timed(run: impl Fn()) -> f64 {
    let once = |_| {
        let started = Instant::now();
        run();
        started.elapsed().as_secs_f64() * 1e3
    };
    median((0..RUNS).map(once).collect())
}

/// cloud32's first 16 or 24 GPUs: hosts in the order of the file.
fn smaller(cluster: &Cluster, devices: u16) -> Cluster {
    let mut left = devices;
    let mut members = Vec::new();
    for id in cluster.ids() {
        let n = cluster.instance(id).count.min(left);
        if n > 0 {
            members.push((id, n));
        }
        left -= n;
    }
    cluster.part(&members)
}

/// cloud32 over and over, one zone each, in which links are by so much slower than in the one before (s).
fn larger(cluster: &Cluster, times: u32, differ: f64) -> Cluster {
    let slow = ClusterLink { latency: Seconds(1e-3), bandwidth: BytesPerSecond(0.5625e9) };
    let fast = ClusterLink { latency: Seconds(200e-6), bandwidth: BytesPerSecond(4.5e9) };
    let copy = |t: u32| {
        let instance = move |i: &Instance| Instance { name: format!("{}.{t}", i.name), site: t, ..i.clone() };
        cluster.instances.iter().map(instance)
    };
    let instances = (0..times).flat_map(copy).collect();
    let within = |i: u32| ClusterLink { latency: fast.latency + Seconds(differ) * f64::from(i), ..fast };
    let row = |i: u32| (0..times).map(|j| if i == j { within(i) } else { slow }).collect();
    Cluster::new("large".into(), cluster.kinds.clone(), instances, (0..times).map(row).collect()).expect("it is one")
}

pub fn print() {
    println!("| GPUs | workload | links | 1,000 evaluations | `tsnode plan`'s 4,000 |");
    println!("|---|---|---|---|---|");
    for devices in [16, 24, 32] {
        for workload in WORKLOADS {
            for links in LINKS {
                let cluster = smaller(&shipped("cloud32", Column::Paper, links), devices);
                let rate = 0.1 * f64::from(devices);
                let problem = problem(cluster, Column::Paper, workload, rate, Slo::e2e(5.0));
                let quick = timed(|| drop(plan(&problem, 0, thousand())));
                let full = timed(|| drop(plan(&problem, 0, usual())));
                println!("| {devices} | {workload} | {links} | {quick:.0} ms | {full:.0} ms |");
            }
        }
    }
    for (what, differ) in [("alike", 0.0), ("none like another", 1e-6)] {
        let cluster = larger(&shipped("cloud32", Column::Paper, "default"), 32, differ);
        let devices = cluster.devices();
        let large = problem(cluster, Column::Paper, "coding", 96.0, Slo::e2e(5.0));
        let time = timed(|| drop(regions::search(&large, 0, thousand(), NEVER)));
        println!("| {devices} | coding | default | {time:.0} ms in regions, {what} | |");
    }
    rescheduling();
}

/// After losing a host of four A6000 that decode.
fn rescheduling() {
    println!("\n| after losing 4 of 32 | evaluations | time |\n|---|---|---|");
    for workload in WORKLOADS {
        let whole = shipped("cloud32", Column::Paper, "default");
        let problem = problem(whole, Column::Paper, workload, 3.0, Slo::e2e(5.0));
        let found = plan(&problem, 0, usual());
        let mut evaluator = Evaluator::new(&problem);
        let groups = search::shelved(&mut evaluator, &found.grouping).expect("it was found");
        let lost = problem.cluster.ids().next().expect("a host");
        let standing: Vec<StandingGroup> = groups
            .iter()
            .zip(&found.grouping.parts)
            .filter(|(_, part)| part.members.iter().all(|m| m.0 != lost))
            .map(|(g, part)| StandingGroup {
                members: part.members.clone(),
                config: evaluator.shelved(*g).rated.config.clone(),
                phase: part.phase,
            })
            .collect();
        let evaluations = rescheduling::reschedule(&problem, &standing).evaluations;
        let time = timed(|| drop(rescheduling::reschedule(&problem, &standing)));
        println!("| {workload} | {evaluations} | {time:.2} ms |");
    }
}
