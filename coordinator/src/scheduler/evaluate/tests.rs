//! Like groups are loaded alike.

use super::*;
use crate::{
    policy::choice::Batches,
    scheduler::{
        Slo, Space, Workload,
        cluster::{Cluster, ClusterLink, Instance, KindId},
        figures, public_models,
        slo::Reference,
    },
};
use tsnode_protocol::{BytesPerSecond, Seconds};

/// Four peers of about one speed.
fn peers(speeds: [f64; 4], rate: f64) -> Problem {
    let model = public_models::by_name("LLaMA-7B").unwrap();
    let kinds = speeds.iter().map(|s| figures::from_peaks("peer".into(), 80.0 * s, 800.0 * s, 48.0)).collect();
    let path = ClusterLink { latency: Seconds(1e-4), bandwidth: BytesPerSecond(1.25e9) };
    let instance = |n: u16| Instance { name: n.to_string(), kind: KindId(n), count: 1, site: n.into(), inside: path };
    let cluster = Cluster::new("swarm".into(), kinds, (0..4).map(instance).collect(), vec![vec![path; 4]; 4]).unwrap();
    let reference = Reference::a100(&model, figures::Column::Vendor).unwrap();
    let workload = Workload::named("conversation").unwrap();
    let mut problem =
        Problem::new(cluster, model, workload, rate, Slo::e2e(10.0), reference, Space::default()).unwrap();
    problem.noise = 0.01;
    problem.prompts = Batches::default().into();
    problem
}

/// What measurements do not tell apart is loaded alike, also where one group prefills for three and cannot for all.
#[test]
fn like_groups_are_loaded_alike() {
    for rate in [0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0] {
        for spread in [0.0, 0.05, 0.1, 0.2] {
            let problem = peers([1.0, 1.0 - spread, 1.0, 1.0 + spread], rate);
            let mut evaluator = Evaluator::new(&problem);
            let phases = [Phase::Prefill, Phase::Decode, Phase::Decode, Phase::Decode];
            let group = |(i, phase): (u32, &Phase)| evaluator.group(&vec![(InstanceId(i), 1)], *phase).unwrap();
            let groups: Vec<GroupNo> = (0..4).zip(&phases).map(group).collect();
            let plan = evaluator.evaluate(&groups);
            let carried = plan.carried();
            let most = plan.shares.iter().map(|s| s.share / carried).fold(0.0, f64::max);
            assert!(most < 0.5, "{rate} requests/s, speeds {spread} apart: {plan:?}");
        }
    }
}
