//! The same requests in the simulator: models on one device by its measured profiles, with what was measured beside them.

use crate::{
    cli::{
        bench::serve::{
            arrivals::PlannedRequest,
            report::{Metric, Report},
        },
        exit::{Exit, ExitKind},
    },
    view::SwarmView,
};
use std::collections::BTreeMap;
use tsnode_coordinator::{
    members::Members,
    policy::{
        batching::ServiceNo,
        routing::Asked,
        sharing::{TurnOrder, device_use::ServiceUse},
    },
    replay::machines::Arrival,
    service_monitor,
};
use tsnode_protocol::{Advert, ModelCard, PeerId, Plan, Seconds};
use tsnode_simulator::{
    live_plan::LivePlan,
    percentile::Sorted,
    shared_peer::{SharedPeer, SharedPeerRun},
    trace::beside,
};

/// Requests of one model that were asked one after another, each of these lengths.
pub(super) struct LoneRequests {
    pub prompt: u32,
    pub answer: u32,
    pub report: Report,
    /// What they had of the device.
    pub used: ServiceUse,
}

/// What one model's steps and requests take beside its profile (s).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ModelOverheads {
    /// A step on the device, where the profile is short of it; less than nothing where it says too much.
    pub device: f64,
    /// From a step's end to the next, while another model may compute.
    pub step: f64,
    pub request: f64,
    /// A usual request alone, on average: as measured, and as the simulator has it with these.
    pub measured: f64,
    pub simulated: f64,
}

/// A peer's device in the simulator.
pub(super) struct SimulatedPeer {
    peer: SharedPeer,
    /// What was asked alone before all else: by then orders have measured what requests of each model take.
    before: Vec<Asked>,
    /// Of each model.
    pub overheads: Vec<ModelOverheads>,
}

/// Normalised latency: the whole time over what the model's requests take alone, on average.
pub(super) fn normalised(whole: f64, mean_alone: f64) -> f64 {
    service_monitor::normalised(Seconds(whole), Seconds(mean_alone))
}

fn asked(n: usize, prompt: u32, answer: u32) -> Asked {
    Asked { service: ServiceNo(n as u16), ..Asked::new(prompt, answer) }
}

impl SimulatedPeer {
    /// Of the peer that this view is of, which serves these models, by the requests that each was asked alone.
    pub fn new(view: &SwarmView, cards: &[ModelCard], alone: &[LoneRequests]) -> Result<Self, Exit> {
        let wrong = |why: &str| Exit::new(ExitKind::Other, format!("the peer's plan cannot be simulated: {why}"));
        let adverts: BTreeMap<PeerId, Advert> = view.peers.iter().map(|p| (p.id, p.advert.clone())).collect();
        let members: Members<'_> = adverts.iter().map(|(id, advert)| (*id, advert)).collect();
        let plan: &Plan = view.plan.as_ref().ok_or_else(|| wrong("there is none"))?;
        let plans: Vec<LivePlan<'_>> = cards
            .iter()
            .map(|card| LivePlan::new(&members, plan, card.id, view.split).map_err(|e| wrong(&e.to_string())))
            .collect::<Result<_, _>>()?;
        let with = |device: &[f64], steps: &[f64]| {
            let models: Option<Vec<_>> = plans.iter().map(LivePlan::resident).collect();
            let seconds = |all: &[f64]| all.iter().map(|step| Seconds(*step)).collect::<Vec<_>>();
            let peer = models.and_then(|models| SharedPeer::new(models, seconds(steps)));
            let peer = peer.map(|peer| peer.taking_longer(&seconds(device)));
            peer.ok_or_else(|| wrong("a model is on several devices"))
        };
        let nothing = vec![0.0; plans.len()];
        let plain = with(&nothing, &nothing)?;
        let device: Vec<f64> = alone.iter().enumerate().map(|(n, alone)| alone.device(&plain, n)).collect();
        let plain = with(&device, &nothing)?;
        let steps: Vec<f64> = alone.iter().enumerate().map(|(n, alone)| alone.step(&plain, n)).collect();
        let peer = with(&device, &steps)?;
        let overhead = |(n, alone): (usize, &LoneRequests)| {
            let own = alone.overheads(&peer, n, steps[n]);
            ModelOverheads { device: device[n], ..own }
        };
        let overheads = alone.iter().enumerate().map(overhead).collect();
        let asked_alone =
            |(n, alone): (usize, &LoneRequests)| vec![asked(n, alone.prompt, alone.answer); alone.report.completed];
        let before = alone.iter().enumerate().flat_map(asked_alone).collect();
        Ok(Self { peer, before, overheads })
    }

    /// What a request of the n-th model takes with nobody else there (s).
    pub fn alone(&self, n: usize, prompt: u32, answer: u32) -> f64 {
        self.peer.alone(asked(n, prompt, answer)).0 + self.overheads[n].request
    }

    /// Normalised latencies of each model's requests, in this order of turns, and what they had of the device.
    pub fn run(
        &self,
        order: TurnOrder,
        planned: &[Vec<PlannedRequest>],
        means: &[f64],
    ) -> (Vec<Sorted>, Vec<ServiceUse>) {
        let (mut arrivals, mut begun) = (Vec::new(), Seconds(0.0));
        for asked in &self.before {
            arrivals.push(Arrival { at: begun, asked: *asked });
            begun += self.peer.alone(*asked);
        }
        let arrival = |p: &PlannedRequest| {
            let at = begun + Seconds(p.at.as_secs_f64());
            Arrival { at, asked: Asked::new(p.prompt, p.answer) }
        };
        arrivals.extend(beside(planned.iter().map(|list| list.iter().map(arrival).collect()).collect()));
        let SharedPeerRun { whole, used } = self.peer.run_counted(order, &arrivals);
        let before = self.peer.run_counted(order, &arrivals[..self.before.len()]).used;
        let of = |(n, mean): (usize, &f64)| {
            let all = arrivals.iter().zip(&whole).skip(self.before.len());
            let own = all.filter(|(arrival, whole)| usize::from(arrival.asked.service.0) == n && whole.is_finite());
            Sorted::new(own.map(|(_, whole)| normalised(whole.0 + self.overheads[n].request, *mean)))
        };
        let used = used.iter().zip(&before).map(|(all, before)| all.since(before));
        (means.iter().enumerate().map(of).collect(), used.collect())
    }
}

impl LoneRequests {
    fn times(&self, peer: &SharedPeer, n: usize) -> (f64, f64) {
        let first = peer.alone(asked(n, self.prompt, 1)).0;
        (first, peer.alone(asked(n, self.prompt, self.answer)).0)
    }

    /// By how much the device takes longer for a step than the profile says (s).
    fn device(&self, plain: &SharedPeer, n: usize) -> f64 {
        let simulated = plain.alone_counted(asked(n, self.prompt, self.answer)).1;
        if self.used.steps == 0 { 0.0 } else { self.used.step().0 - simulated.step().0 }
    }

    /// By how much a step then takes longer than the simulator says, which is not the device's time (s).
    fn step(&self, plain: &SharedPeer, n: usize) -> f64 {
        let (first, whole) = self.times(plain, n);
        match self.report.at(Metric::Tpot, 0.5) {
            Some(measured) if self.answer > 1 => (measured - (whole - first) / f64::from(self.answer - 1)).max(0.0),
            _ => 0.0,
        }
    }

    /// The same of a request's first token, with these steps.
    fn overheads(&self, peer: &SharedPeer, n: usize, step: f64) -> ModelOverheads {
        let (first, whole) = self.times(peer, n);
        let request = self.report.at(Metric::Ttft, 0.5).map_or(0.0, |measured| (measured - first).max(0.0));
        let measured = self.report.mean(Metric::E2el).unwrap_or_default();
        ModelOverheads { device: 0.0, step, request, measured, simulated: whole + request }
    }
}
