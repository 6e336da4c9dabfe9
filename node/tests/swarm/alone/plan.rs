//! The plan of a swarm of uneven hosts: it is what the scheduler says of the same view, and requests fall as it says.
#![expect(clippy::unwrap_used, reason = "a swarm that cannot be had fails the test")]

use crate::common::{Net, owned};
use futures::StreamExt;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;
use tsnode::view::SwarmView;
use tsnode_coordinator::{
    gate::SplitChoice,
    planner::{self, PlanOptions},
};
use tsnode_protocol::PeerId;
use tsnode_testnet::PeerConfig;

/// Part by which values may drift as links are measured anew.
const DRIFT: f64 = 0.01;
/// Requests that each peer takes as a gateway: after a hundred it would say what it is asked for, and another plan be made for that.
const EACH: usize = 90;
const PEERS: usize = 5;
const REQUESTS: usize = PEERS * EACH;

async fn view(net: &Net, index: usize) -> SwarmView {
    let url = format!("{}/api/swarm", net.peer(index).http);
    net.client.get(url).send().await.unwrap().json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uneven_hosts_are_planned_by_the_scheduler_and_served_by_its_shares() {
    let host = |flags: &[&str]| PeerConfig::Host { flags: owned(flags) };
    let peers = vec![
        host(&["--threads", "2"]),
        host(&["--threads", "1"]),
        host(&["--threads", "1", "--kv-memory", "16MiB"]),
        host(&["--threads", "1", "--kv-memory", "8MiB"]),
        PeerConfig::Gateway,
    ];
    let net = Net::of(peers, &[]).await;
    the_plan_is_the_schedulers(&net).await;
    a_peer_says_why(&net).await;
    requests_fall_as_the_plan_says(&net).await;
    net.down().await;
}

/// Planned again on a peer's view, which has links measured anew since the coordinator planned: as many stages, and
/// nothing better.
async fn the_plan_is_the_schedulers(net: &Net) {
    let view = view(net, 4).await;
    let adopted = view.plan.unwrap();
    let members = view.peers.iter().map(|p| (p.id, &p.advert)).collect();
    let wish = PlanOptions { layout: None, split: SplitChoice::Always };
    let draft = planner::plan(&members, &wish, None);
    let again = tsnode_protocol::Plan { groups: draft.groups, routes: draft.routes, ..adopted.clone() };
    let (new, old) = (planner::value(&again, &members, &wish), planner::value(&adopted, &members, &wish));
    println!("the same groups: {}", again.groups == adopted.groups);
    println!("adopted {}: {old:.4}; planned again {}: {new:.4}", adopted.reason, draft.reason);
    assert!(new <= old * (1.0 + DRIFT), "{new} instead of {old}");
    let count = |plan: &tsnode_protocol::Plan| plan.groups.iter().map(|g| g.stages.len()).sum::<usize>();
    assert_eq!(count(&again), count(&adopted));
}

/// `tsnode plan --why`: other groups of these devices, and what each loses.
async fn a_peer_says_why(net: &Net) {
    let url = net.peer(4).http.clone();
    let run = tokio::process::Command::new(env!("CARGO_BIN_EXE_tsnode"))
        .args(["plan", "--why", "--json", "--api", &url])
        .output();
    let output = run.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = &plan["why"][0];
    let number = |v: &serde_json::Value| v.as_f64().unwrap();
    assert!(number(&why["value"]) > 0.0, "{why}");
    let others = why["runners_up"].as_array().unwrap();
    assert!(!others.is_empty());
    for other in others {
        assert_ne!(other["groups"], plan["groups"]);
        assert!((number(&why["value"]) - number(&other["value"]) - number(&other["loses"])).abs() < 1e-12);
    }
}

async fn requests_fall_as_the_plan_says(net: &Net) {
    let before = view(net, 4).await;
    let urls: Vec<String> = (0..PEERS).map(|index| format!("{}/v1/completions", net.peer(index).http)).collect();
    let ask = |n: usize| {
        let body = json!({ "prompt": [300 + n % 3000], "max_tokens": 2, "temperature": 0, "ignore_eos": true });
        let request = net.client.post(&urls[n % PEERS]).json(&body).timeout(Duration::from_secs(60)).send();
        async move {
            let response = request.await.unwrap();
            assert_eq!(response.status(), 200);
            let header = |name: &str| response.headers()[name].to_str().unwrap().parse::<PeerId>().unwrap();
            let pair = (header("x-tsnode-prefill"), header("x-tsnode-decode"));
            response.bytes().await.unwrap();
            pair
        }
    };
    let pairs: Vec<(PeerId, PeerId)> =
        futures::stream::iter((0..REQUESTS).map(ask)).buffer_unordered(2).collect().await;
    let mut counts: BTreeMap<(PeerId, PeerId), usize> = BTreeMap::new();
    for pair in pairs {
        *counts.entry(pair).or_default() += 1;
    }
    let plan = before.plan.unwrap();
    assert_eq!(view(net, 4).await.plan_id, before.plan_id, "one plan for all requests");
    for route in plan.routes {
        let leader = |id| plan.groups.iter().find(|g| g.id == id).and_then(|g| g.leader()).unwrap();
        let got = counts.remove(&(leader(route.prefill), leader(route.decode))).unwrap_or(0);
        let measured = got as f64 / REQUESTS as f64;
        println!("planned {:.3}, measured {measured:.3}", route.share);
        assert!((measured - route.share).abs() < 0.03, "planned {:.3}, measured {measured:.3}", route.share);
    }
    assert!(counts.is_empty(), "requests that the plan does not know: {counts:?}");
}
